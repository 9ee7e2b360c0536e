"""Floods an embedded tritonserver with rejected or cancelled requests, and counts its crashes.

    python -m tests.flood --kind mixed --count 10000 [--poll-seconds 0.02 --settle-seconds 0.25]

The model is a minimal decoupled model. The defaults poll for cancellation and send FINAL at the times of the talker;
0.004 and 0 reproduce the crashes of Triton 2.51. Kinds: `refuse` requests are rejected at once, `cancel` cancels in the
middle of a stream, `mixed` sends several requests on one gRPC stream and cancels after a random response.
"""

import itertools
import random
import struct
import tempfile
import threading
import time
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated

import grpc
import typer
from tritonclient.grpc import service_pb2, service_pb2_grpc

from scripts.server.tritonserver import TritonServer
from tests.e2e.serving import serve

REPOSITORY = Path(__file__).parent / "repository"
TICK = 0.002
LONG = 1000
# Far above the longest wait of a stream, for machines that pause.
DEADLINE = 120.0


class Kind(Enum):
    REFUSE = "refuse"
    CANCEL = "cancel"
    MIXED = "mixed"

    def draw(self, rng: random.Random) -> tuple[list[int], int | None]:
        """Response counts of the requests on a gRPC stream, and after how many responses the caller cancels."""
        match self:
            case Kind.REFUSE:
                return [0], None
            case Kind.CANCEL:
                return [LONG], rng.randrange(4)
            case Kind.MIXED:
                return [rng.choice([0, 3, 30]) for _ in range(rng.randrange(2, 9))], rng.randrange(12)


class Flood:
    """Concurrent callers that open `count` gRPC streams in total."""

    def __init__(self, kind: Kind, count: int) -> None:
        self._kind, self._left = kind, iter(range(count))
        self.done = 0

    def run(self, server: TritonServer, callers: int) -> int | None:
        """Returns the exit code of a server that crashed, or None after the last stream."""
        threads = [threading.Thread(target=self._call, args=(server, seed), daemon=True) for seed in range(callers)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads) and server.poll() is None:
            time.sleep(0.1)
        for thread in threads:
            thread.join(DEADLINE)
        return server.poll()

    def _call(self, server: TritonServer, seed: int) -> None:
        rng = random.Random(f"{seed} {self.done}")
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(f"localhost:{server.ports.grpc}", options) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            for _ in itertools.takewhile(lambda _: server.poll() is None, self._left):
                counts, patience = self._kind.draw(rng)
                call = stub.ModelStreamInfer(map(message, counts), timeout=DEADLINE)
                read(call, patience)
                call.cancel()
                self.done += 1


def message(count: int) -> service_pb2.ModelInferRequest:
    request = service_pb2.ModelInferRequest(model_name="flood")
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    request.inputs.add(name="count", datatype="INT32", shape=[1])
    request.raw_input_contents.append(struct.pack("<i", count))
    return request


def environment_of(poll: float = 0.02, settle: float = 0.25, tick: float = TICK) -> dict[str, str]:
    """Seconds between checks for cancellation, from a cancel to FINAL, and between responses of a stream."""
    return {f"FLOOD_{name}_SECONDS": str(value) for name, value in (("POLL", poll), ("SETTLE", settle), ("TICK", tick))}


def read(call: Iterator[service_pb2.ModelStreamInferResponse], patience: int | None) -> None:
    try:
        for _ in itertools.islice(call, patience):
            pass
    except grpc.RpcError as error:
        # The server crashed, which `run` reports.
        if error.code() != grpc.StatusCode.UNAVAILABLE:
            raise


def main(
    kind: Annotated[Kind, typer.Option()],
    count: Annotated[int, typer.Option(help="gRPC streams in total")] = 10_000,
    callers: int = 16,
    poll_seconds: Annotated[float, typer.Option(help="between checks for cancellation")] = 0.02,
    settle_seconds: Annotated[float, typer.Option(help="from a cancel to FINAL")] = 0.25,
) -> None:
    flood, crashes, started = Flood(kind, count), 0, time.monotonic()
    environment = environment_of(poll_seconds, settle_seconds)
    with tempfile.TemporaryDirectory() as folder:
        while True:
            with serve(REPOSITORY, Path(folder), environment, ()) as server:
                code = flood.run(server, callers)
            if code is None:
                break
            crashes += 1
            print(f"tritonserver crashed with exit code {code} after {flood.done} streams", flush=True)
    print(f"{kind.value}: {flood.done} streams, {crashes} crashes, {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    typer.run(main)
