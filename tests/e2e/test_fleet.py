"""Three servers behind Envoy: an even spread, one that is killed, one that is drained; their benchmark."""

import itertools
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from qwen3_tts_client.analysis.playback import play
from qwen3_tts_client.errors import LOST
from qwen3_tts_client.protocol import SAMPLE_RATE
from scripts.benchmarks import fleet as benchmark
from scripts.server.fleet import admin
from scripts.server.fleet.background import BackgroundFleet, FleetPorts
from scripts.server.fleet.plan import PORTS_PER_SERVER
from scripts.server.ports import Ports
from scripts.server.tritonserver import is_ready
from tests.e2e.serving import ROOT, Caller, Received, eventually
from tests.e2e.test_streamed_text import SequenceStream
from tests.e2e.test_streams import assert_own_frames
from tests.ports import free_ports

SERVERS = 3
STREAMS = 12
# 3 s at 10 ms a frame, for 24 s of audio: after half a second a listener has four seconds in hand.
FRAMES = 300
IN_HAND_SECONDS = 0.5
PATIENCE = 60.0
seeds = itertools.count(1)


class Fleet(BackgroundFleet):
    def metric(self, server: int, name: str, **labels: str) -> float:
        with caller_of(self.servers[server]) as caller:
            return caller.metric(name, **labels)


def caller_of(ports: Ports) -> Caller:
    """A caller with a connection of its own."""
    caller = Caller(SimpleNamespace(ports=ports))  # type: ignore[arg-type]
    caller.channel.close()
    caller.channel = grpc.insecure_channel(f"127.0.0.1:{ports.grpc}", [("grpc.use_local_subchannel_pool", 1)])
    caller.stub = service_pb2_grpc.GRPCInferenceServiceStub(caller.channel)
    return caller


@pytest.fixture(scope="module")
def fleet(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Fleet]:
    port, admin_port, first, *_ = free_ports(2 + SERVERS * PORTS_PER_SERVER)
    with Fleet(
        SERVERS,
        tmp_path_factory.mktemp("fleet"),
        ports=FleetPorts(port, admin_port, first),
        options=[f"--model-repository={scripted_repository}", "--drain-seconds=60"],
        environment={"PROJECT_ROOT": str(ROOT), "CUDA_VISIBLE_DEVICES": ""} | scripted_environment,
    ) as fleet:
        yield fleet


@dataclass
class Spoken:
    """One stream of the load; times in perf_counter_ns."""

    seed: int
    received: Received

    @property
    def begun(self) -> int:
        return self.received.sent

    def largest_stall_after(self, moment: int) -> int:
        """Nanoseconds that a player waits for a chunk that arrives after the moment."""
        played = play(self.received.arrivals, [len(pcm) for pcm in self.received.pcm], SAMPLE_RATE)
        later = zip(self.received.arrivals, played.stalls_ns, strict=True)
        return max((stall for arrival, stall in later if arrival > moment), default=0)


@dataclass
class Load:
    """Callers that speak one stream after the other until `stop` is set."""

    port: int
    stop: threading.Event = field(default_factory=threading.Event)
    spoken: list[Spoken] = field(default_factory=list)

    def speak(self) -> None:
        with caller_of(Ports(grpc=self.port)) as caller:
            while not self.stop.is_set():
                seed = next(seeds)
                self.spoken.append(Spoken(seed, caller.speak(seed=seed % 2048, max_frames=FRAMES)))

    def failed(self) -> list[Spoken]:
        """Checks that all others are complete and bit-exact."""
        for one in self.spoken:
            if one.received.error is None:
                assert_own_frames(one.received, one.seed % 2048, FRAMES)
        return [one for one in self.spoken if one.received.error is not None]


@contextmanager
def load_on(fleet: Fleet) -> Iterator[Load]:
    """STREAMS at once, spread over all servers; ends when its streams have ended."""
    load = Load(fleet.ports.port)
    with ThreadPoolExecutor(STREAMS) as pool:
        callers = [pool.submit(load.speak) for _ in range(STREAMS)]
        try:
            names = "qwen3_tts_requests_running"
            eventually(lambda: all(fleet.metric(server, names) >= STREAMS // SERVERS - 1 for server in range(SERVERS)))
            yield load
        finally:
            load.stop.set()
            for caller in callers:
                caller.result(PATIENCE)


def spread(fleet: Fleet, streams: int = 60) -> list[int]:
    """Streams that each server got of a load of its own."""
    before = admin.counts(fleet.ports.admin, "rq_total")
    callers = [caller_of(Ports(grpc=fleet.ports.port)) for _ in range(STREAMS)]
    with ThreadPoolExecutor(STREAMS) as pool:
        speaking: list[Future[Received]] = [
            pool.submit(callers[number % STREAMS].speak, seed=number, max_frames=100) for number in range(streams)
        ]
        for number, received in enumerate(speaking):
            assert_own_frames(received.result(PATIENCE), number, 100)
    for caller in callers:
        caller.channel.close()
    return [now - then for now, then in zip(admin.counts(fleet.ports.admin, "rq_total"), before, strict=True)]


def one_every(seconds: float, count: int, speak: Callable[[], Received]) -> list[Received]:
    with ThreadPoolExecutor(count) as pool:
        speaking = []
        for _ in range(count):
            speaking.append(pool.submit(speak))
            time.sleep(seconds)
        return [received.result(PATIENCE) for received in speaking]


def assert_even(counts: list[int]) -> None:
    mean = sum(counts) / len(counts)
    print(f"streams of each server: {counts}")
    assert all(abs(count - mean) <= 0.1 * mean for count in counts)


def test_streams_are_spread_evenly(fleet: Fleet) -> None:
    assert_even(spread(fleet))


@pytest.mark.timing
def test_killed_server_takes_only_its_own_streams(fleet: Fleet) -> None:
    with load_on(fleet) as load, caller_of(Ports(grpc=fleet.ports.port)) as newcomer:
        time.sleep(IN_HAND_SECONDS)
        old = fleet.tritonserver(0)
        old.kill()
        killed = time.perf_counter_ns()
        new = one_every(0.05, 40, lambda: newcomer.speak(seed=7, max_frames=1))
        eventually(lambda: not old.is_running() and is_ready(fleet.servers[0], "qwen3_tts"), PATIENCE)
    failed = load.failed()
    print(f"{len(failed)} of {len(load.spoken)} streams failed: {sorted({str(one.received.error) for one in failed})}")
    # Those that ran on it, and at most those that were sent before Envoy had seen its connections close.
    assert 0 < len(failed) <= STREAMS // SERVERS + 2
    assert all(one.begun < killed + 1e9 for one in failed)
    assert all(LOST in str(one.received.error) for one in failed if one.received.pcm)
    served = [one for one in new if one.error is None]
    for one in served:
        assert_own_frames(one, 7, 1)
    first_audio_ms = (min(one.arrivals[0] for one in served) - killed) / 1e6
    print(f"{len(new) - len(served)} of {len(new)} new streams failed; first audio after {first_audio_ms:.0f} ms")
    assert first_audio_ms < 1000
    # Nothing was sent, so a gateway tries again.
    assert all(str(one.error).startswith("UNAVAILABLE") and one.sent < killed + 1e9 for one in new if one.error)
    in_hand = [one for one in load.spoken if one not in failed and one.begun < killed - IN_HAND_SECONDS * 1e9]
    running = [one for one in in_hand if one.received.arrivals[-1] > killed]
    assert running
    assert max(one.largest_stall_after(killed) for one in running) == 0
    fleet.wait_ready()
    assert_even(spread(fleet))


@pytest.mark.long
# On a busy machine a server that has just started is slower, and gets fewer streams.
@pytest.mark.timing
def test_drained_server_loses_no_stream(fleet: Fleet) -> None:
    drained = fleet.launcher(1)
    with caller_of(Ports(grpc=fleet.ports.port)) as caller:
        # One of them is on each server.
        words = [SequenceStream(caller) for _ in range(SERVERS)]
        for stream in words:
            stream.send("These words ", start=True, max_frames=100)
        with load_on(fleet) as load:
            drained.terminate()
            eventually(lambda: fleet.metric(1, "qwen3_tts_draining") == 1)
            for stream in words:
                stream.send("still arrive.", end=True)
                # Triton waits for open gRPC streams, too.
                stream.finish()
                assert stream.errors == []
            eventually(lambda: re.search(r"^fleet \| 1 .* ended$", fleet.log, re.MULTILINE) is not None, PATIENCE)
    assert load.failed() == []
    fleet.process.send_signal(signal.SIGUSR1)
    fleet.wait_ready()
    assert_even(spread(fleet))


def test_benchmark_of_a_fleet(fleet: Fleet, tmp_path: Path) -> None:
    request = ["--speaker", "ryan", "--max-frames", 50, "--text", "Hello."]
    table = list(benchmark.Loads(fleet, tmp_path, request, interval=2500, workers=1).rows(3, 4))
    assert [(row["servers"], row["path"], row["load"]) for row in table] == [
        (1, "direct", "c=1"), (1, "direct", "c=3"), (1, "direct", "rps=4"),
        (SERVERS, "envoy", "c=1"), (SERVERS, "envoy", "c=9"), (SERVERS, "envoy", "rps=12"),
        (SERVERS, "overload", "rps=48"), (SERVERS, "one-killed", "rps=12"),
    ]  # fmt: skip
    *whole, overloaded, killed = table
    assert [row["errors"] for row in whole] == [0] * len(whole)
    # Three servers with three streams each make the frames of one three times; the scripted talker takes 10 ms a frame.
    assert whole[4]["audio_s_per_s"] > 2 * whole[1]["audio_s_per_s"]
    assert overloaded["errors"] == overloaded["refused"]
    assert 0 < killed["errors"] < killed["requests"] / SERVERS
    assert killed["back_after_s"] > 0
    assert len(fleet.healthy()) == SERVERS
