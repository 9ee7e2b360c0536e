"""Floods a server of the launcher with streams of which half are cut, and counts what the others lost.

    python -m tests.flood.launcher --count 100000

The talker is the repository's with a scripted runner. A gRPC stream has one to four requests; it is read to its end,
cancelled, cut with its connection, or cut by a reset (TCP RST). Prints the streams of each kind, those that were not
cut and lost something that had begun, by status, the longest wait for a response of those that were not cut, and how
often the server was started again.
"""

import itertools
import random
import socket
import struct
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.queues import Queue
from pathlib import Path
from typing import Annotated, NamedTuple

import grpc
import numpy as np
import typer
from tritonclient.grpc import service_pb2_grpc

from qwen3_tts_client.protocol import SpeechRequest, encode
from scripts.server.ports import Ports
from scripts.server.tritonserver import is_ready
from scripts.synthetic.checkpoint import make_checkpoint
from tests.e2e.serving import copy_repository, eventually, pcm_of, scripted_settings
from tests.e2e.test_deaths import launched

KINDS = ("whole", "cancel", "cut", "reset")
WEIGHTS = (0.5, 0.25, 0.15, 0.1)
SAMPLES_PER_FRAME = 1920
READY_SECONDS = 120.0
# Far above the time in which the launcher's check ends a server that hangs.
DEADLINE_SECONDS = 180.0
RETRIED, RETRY_SECONDS = "retried", 0.5


class Ended(NamedTuple):
    kind: str
    lost: str
    """Why a stream that was not cut lost something."""
    longest_wait: float
    """Seconds."""


class Relay:
    """Passes on one connection, until it is reset."""

    def __init__(self, port: int) -> None:
        self._listener, self._server = socket.create_server(("localhost", 0)), ("localhost", port)
        self.port = self._listener.getsockname()[1]
        self._ends: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        for end in (self._listener, *self._ends):
            with suppress(OSError):
                # With a linger time of 0, close sends RST.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD)
            end.close()

    def _accept(self) -> None:
        with suppress(OSError):
            client, _ = self._listener.accept()
            self._ends.append(client)
            try:
                server = socket.create_connection(self._server)
            except OSError:
                client.close()  # between two starts of the server
                return
            self._ends.append(server)
            for source, target in ((client, server), (server, client)):
                threading.Thread(target=self._copy, args=(source, target), daemon=True).start()

    def _copy(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)


def call_once(rng: random.Random, port: int) -> Ended:
    """Opens a gRPC stream and reads it to its end, or cuts it."""
    kind = rng.choices(KINDS, WEIGHTS)[0]
    relay = Relay(port) if kind == "reset" else None
    lengths = [rng.choice((1, 3, 12, 30)) for _ in range(rng.randrange(1, 5))]
    seeds = [rng.randrange(1, 500) for _ in lengths]
    patience = None if kind == "whole" else rng.randrange(8)
    options = [("grpc.use_local_subchannel_pool", 1)]
    requests = [
        encode(SpeechRequest("Hello.", speaker="ryan", seed=seed, max_frames=length), request_id=str(number))
        for number, (seed, length) in enumerate(zip(seeds, lengths, strict=True))
    ]
    pcm: dict[str, list[np.ndarray]] = {str(number): [] for number in range(len(lengths))}
    lost, longest, waited = "", 0.0, time.monotonic()
    with grpc.insecure_channel(f"localhost:{relay.port if relay else port}", options) as channel:
        call = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(
            iter(requests), timeout=DEADLINE_SECONDS
        )
        try:
            for response in itertools.islice(call, patience):
                longest, waited = max(longest, time.monotonic() - waited), time.monotonic()
                lost = lost or response.error_message
                pcm[response.infer_response.id or "0"].append(pcm_of(response))
        except grpc.RpcError as error:
            # While the server starts again, a client tries again.
            lost = error.code().name if any(pcm.values()) else RETRIED
        if relay is not None:
            relay.reset()
        elif kind == "cancel":
            call.cancel()
    if kind != "whole":
        return Ended(kind, "", 0.0)
    for number, seed, length in zip(pcm, seeds, lengths, strict=True):
        samples = np.concatenate([np.empty(0, np.int16), *pcm[number]]).reshape(-1, SAMPLES_PER_FRAME)
        if not lost and samples[:, :2].tolist() != [[seed, frame] for frame in range(length)]:
            lost = "wrong audio"
    return Ended(kind, lost, longest)


def call_many(port: int, seed: int, count: int, callers: int, ended: "Queue[Ended]") -> None:
    """A process with `callers` threads, which open `count` streams in total."""
    left = iter(range(count))

    def run(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        for _ in left:
            while (one := call_once(rng, port)).lost == RETRIED:
                time.sleep(RETRY_SECONDS)
            ended.put(one)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def flooded(folder: Path) -> Iterator[tuple[Ports, Path]]:
    """A server of the launcher: its ports, and its log."""
    ports, build = Ports.free(), folder / "build"
    build.mkdir()
    checkpoint = make_checkpoint(folder / "checkpoint", "tiny", "custom_voice")
    repository = copy_repository(folder / "model_repository", fakes=True)
    with launched(repository, scripted_settings(checkpoint), ports, build) as launcher:
        eventually(lambda: is_ready(ports, "qwen3_tts"), READY_SECONDS)
        yield ports, build / "server.log"
        launcher.terminate()
        launcher.wait(READY_SECONDS)


def main(
    count: Annotated[int, typer.Option(help="gRPC streams in total")] = 10_000,
    callers: Annotated[int, typer.Option(help="at once, of each process")] = 16,
    processes: int = 2,
) -> None:
    context, kinds, lost, longest, began = get_context("spawn"), Counter[str](), Counter[str](), 0.0, time.monotonic()
    ended: Queue[Ended] = context.Queue()
    with tempfile.TemporaryDirectory() as folder, flooded(Path(folder)) as (ports, log):
        shares = [count // processes] * processes
        floods = [
            context.Process(target=call_many, args=(ports.grpc, seed, share, callers, ended), daemon=True)
            for seed, share in enumerate(shares)
        ]
        for flood in floods:
            flood.start()
        for done in range(1, sum(shares) + 1):
            one = ended.get(timeout=2 * DEADLINE_SECONDS)
            kinds[one.kind] += 1
            lost.update([one.lost] if one.lost else [])
            longest = max(longest, one.longest_wait)
            if done % 1000 == 0:
                print(f"{done} streams, {time.monotonic() - began:.0f} s, lost {dict(lost)}", flush=True)
        restarts = log.read_text().count("it is started again")
        checks = log.read_text().count("stream check: ")
    print(f"{sum(kinds.values())} streams: {dict(kinds)}")
    print(f"lost {dict(lost)}, longest wait {longest:.1f} s, restarts {restarts}, of the stream check {checks}")


if __name__ == "__main__":
    typer.run(main)
