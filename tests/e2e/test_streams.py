"""Concurrent streams through a real tritonserver; the scripted talker and codec number every frame."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qwen3_tts_client.protocol import SpeechRequest, encode
from scripts.server.tritonserver import TritonServer
from tests.e2e.serving import Caller, Received, eventually, pcm_of, serve
from tests.flood import __main__ as flood

SAMPLES_PER_FRAME = 1920
STREAMS = 64


def assert_own_frames(received: Received, seed: int, frames: int) -> None:
    """Each frame carries the seed, the frame number and the number of frames counted by the codec state."""
    assert received.error is None
    got = received.samples.reshape(-1, SAMPLES_PER_FRAME)[:, :3]
    number = np.arange(frames)
    np.testing.assert_array_equal(got, np.stack([np.full(frames, seed), number % 2048, number], axis=1))


def test_chunks_arrive_before_the_utterance_is_complete(caller: Caller) -> None:
    received = caller.speak(seed=5, max_frames=50)
    assert_own_frames(received, 5, 50)
    lengths = [len(pcm) // SAMPLES_PER_FRAME for pcm in received.pcm]
    assert lengths[0] == 1, "the first chunk is a single frame"
    assert received.arrivals[0] < received.arrivals[-1] - 300e6, "50 frames of 10 ms take half a second"


@pytest.mark.timing
def test_chunks_grow_with_the_callers_buffered_audio(caller: Caller) -> None:
    lengths = [len(pcm) // SAMPLES_PER_FRAME for pcm in caller.speak(seed=5, max_frames=50).pcm]
    assert lengths[:-1] == sorted(lengths[:-1])
    assert lengths[-2] == 16


def test_only_the_first_response_carries_the_sample_rate(caller: Caller) -> None:
    rates = [chunk.sample_rate for _, chunk in caller.stream(max_frames=4)]
    assert len(rates) > 1
    assert rates == [24000] + [None] * (len(rates) - 1)


def test_the_last_response_says_how_the_utterance_ended(caller: Caller) -> None:
    end = caller.speak("Hello.", seed=3, max_frames=9).end
    assert end.usage is not None
    assert (end.finish_reason, end.usage.frames, end.usage.withheld_samples) == ("length", 9, 0)
    assert 0 < end.usage.text_tokens < end.usage.prompt_rows


def test_a_request_can_have_its_leading_silence_withheld(caller: Caller) -> None:
    """The scripted codec's audio is far below the threshold."""
    received = caller.speak(seed=3, max_frames=20, trim_silence=True)
    assert received.end.usage is not None
    withheld = received.end.usage.withheld_samples
    assert 12_000 - 120 <= withheld <= 12_000
    assert len(received.samples) == 20 * SAMPLES_PER_FRAME - withheld


def test_64_concurrent_streams_receive_their_own_frames(caller: Caller) -> None:
    with ThreadPoolExecutor(STREAMS) as pool:
        received = list(pool.map(lambda seed: caller.speak(seed=seed, max_frames=20 + seed), range(STREAMS)))
    for seed, one in enumerate(received):
        assert_own_frames(one, seed, 20 + seed)


def test_equal_request_ids_on_one_grpc_stream_are_not_mixed(caller: Caller) -> None:
    """Request ids need not be unique: each request receives its own frames."""
    requests = [encode(SpeechRequest("x", speaker="ryan", seed=s, max_frames=9), request_id="same") for s in range(8)]
    ends, frames = 0, []
    for response in caller.stub.ModelStreamInfer(iter(requests), timeout=60):
        result = response.infer_response
        assert result.id == "same"
        ends += result.parameters["triton_final_response"].bool_param
        frames.append(pcm_of(response).reshape(-1, SAMPLES_PER_FRAME)[:, :2])
        if ends == len(requests):
            break
    got = {tuple(frame) for frame in np.concatenate(frames).tolist()}
    assert got == {(seed, number) for seed in range(8) for number in range(9)}


def test_cancelled_stream_stops_generating(caller: Caller) -> None:
    cancelled = caller.metric("qwen3_tts_requests_total", outcome="cancelled")
    stream = caller.stream(max_frames=4000)
    list(islice(stream, 3))
    stream.close()  # type: ignore[attr-defined]
    eventually(lambda: caller.metric("qwen3_tts_requests_total", outcome="cancelled") == cancelled + 1)
    eventually(lambda: caller.metric("qwen3_tts_requests_running") == 0)
    time.sleep(1.0)  # the tick that ran at the cancel is counted after it, and metrics are exported every 0.5 s
    frames = caller.metric("qwen3_tts_frames_total")
    time.sleep(1.0)
    assert caller.metric("qwen3_tts_frames_total") == frames


def test_client_disconnect_cancels_all_its_streams(scripted: TritonServer, caller: Caller) -> None:
    channel = grpc.insecure_channel(f"localhost:{scripted.ports.grpc}", [("grpc.use_local_subchannel_pool", 1)])
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    calls = [
        stub.ModelStreamInfer(iter([encode(SpeechRequest("x", speaker="ryan", seed=i, max_frames=4000))]))
        for i in range(8)
    ]
    for call in calls:
        next(call)
    eventually(lambda: caller.metric("qwen3_tts_requests_running") == 8)
    channel.close()
    eventually(lambda: caller.metric("qwen3_tts_requests_running") == 0)
    assert_own_frames(caller.speak(seed=3, max_frames=9), 3, 9)


@pytest.mark.long
@pytest.mark.timing
def test_slow_reader_uses_bounded_memory_and_does_not_delay_other_streams(caller: Caller) -> None:
    frames, pause = 4000, 30.0
    before = caller.speak(seed=1, max_frames=200)
    resident = resident_bytes(caller.server.pid)
    call = caller.stub.ModelStreamInfer(
        iter([encode(SpeechRequest("x", speaker="ryan", seed=9, max_frames=frames))]), timeout=120
    )
    stalled = threading.Timer(pause, lambda: None)
    stalled.start()
    during = [caller.speak(seed=2, max_frames=200) for _ in range(3)]
    stalled.join()
    # The utterance is 15 MB; the limit allows the server's processes a few copies.
    assert resident_bytes(caller.server.pid) - resident < 6 * frames * SAMPLES_PER_FRAME * 2
    received = Received(pcm=[pcm_of(response) for response in call])
    assert_own_frames(received, 9, frames)
    for one in during:
        assert_own_frames(one, 2, 200)
        assert duration(one) < 1.5 * duration(before)


def test_shutdown_ends_every_stream_in_flight(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    with serve(scripted_repository, tmp_path, scripted_environment) as server, Caller(server) as caller:
        with ThreadPoolExecutor(8) as pool:
            in_flight = [pool.submit(caller.speak, seed=i, max_frames=300) for i in range(8)]
            eventually(lambda: caller.metric("qwen3_tts_requests_running") == 8)
            assert server.stop() == 0
        assert "guard" not in (tmp_path / "server.log").read_text()
        for seed, received in enumerate(future.result() for future in in_flight):
            if received.error is None:
                assert_own_frames(received, seed, 300)
            else:
                assert received.error.startswith("UNAVAILABLE")


@pytest.mark.long
@pytest.mark.timing
def test_chunk_overhead_is_close_to_bare_triton(
    scripted_repository: Path, scripted_environment: dict[str, str], tmp_path: Path
) -> None:
    """Compares a talker without compute time, one frame a chunk, with a decoupled model that only sends.

    The two alternate on one machine, so that the ratio does not depend on its speed.
    """
    frames, rounds = 100, 5
    talker_settings = scripted_environment | {
        "SCRIPTED_TICK_SECONDS": "0",
        "QWEN3_TTS_MAX_CHUNK_FRAMES": "1",
        # Admit all streams, even if the machine cannot serve them in real time.
        "QWEN3_TTS_LOAD_LIMIT": "0",
    }
    never_polls = flood.environment_of(poll=1e9, settle=0.0, tick=0.0)
    speech = [encode(SpeechRequest("Hello.", speaker="ryan", seed=seed, max_frames=frames)) for seed in range(STREAMS)]
    with (
        serve(scripted_repository, tmp_path / "talker", talker_settings) as talker,
        serve(flood.REPOSITORY, tmp_path / "bare", never_polls, options=()) as bare,
        Caller(talker) as talker_caller,
        Caller(bare) as bare_caller,
    ):
        talker_caller.speak(max_frames=20)
        costs = []
        for _ in range(rounds):
            received, talker_cost = measure(talker_caller, speech)
            for seed, pcm in enumerate(received):
                assert_own_frames(Received(pcm=pcm), seed, frames)
                assert [len(chunk) for chunk in pcm] == [SAMPLES_PER_FRAME] * frames
            flooded, bare_cost = measure(bare_caller, [flood.message(frames)] * STREAMS)
            assert [len(chunks) for chunks in flooded] == [frames] * STREAMS
            costs.append([talker_cost, bare_cost])
    seconds, cpu_seconds_used = np.sum(costs, axis=0).T
    chunks = rounds * STREAMS * frames
    print(f"chunks per second: {chunks / seconds}; CPU time per chunk: {cpu_seconds_used / chunks * 1e6} us")
    # On a quiet machine 2.5, 1 of it the engine's process.
    assert cpu_seconds_used[0] < 3.5 * cpu_seconds_used[1]
    assert seconds[0] < 2.5 * seconds[1]


def measure(
    caller: Caller, requests: list[service_pb2.ModelInferRequest]
) -> tuple[list[list[np.ndarray]], tuple[float, float]]:
    """Chunks of each request, elapsed seconds and CPU seconds of the server.

    Responses are decoded after the measurement, because the server shares its cores with this process.
    """
    with ThreadPoolExecutor(len(requests)) as pool:
        started, used = time.perf_counter(), cpu_seconds(caller.server.pid)
        streams = list(pool.map(lambda request: list(caller.stub.ModelStreamInfer(iter([request]))), requests))
        costs = time.perf_counter() - started, cpu_seconds(caller.server.pid) - used
    chunks = [[pcm_of(response) for response in responses] for responses in streams]
    return [[pcm for pcm in stream if len(pcm)] for stream in chunks], costs


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its descendants."""
    return sum(sum(process.cpu_times()[:2]) for process in process_tree(pid))


def duration(received: Received) -> int:
    return received.arrivals[-1] - received.arrivals[0]


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants."""
    return sum(process.memory_info().rss for process in process_tree(pid))


def process_tree(pid: int) -> list[psutil.Process]:
    server = psutil.Process(pid)
    return [server, *server.children(recursive=True)]
