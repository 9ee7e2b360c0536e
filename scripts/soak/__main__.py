"""A soak test: callers of all kinds at once, injected faults, and every output checked.

    python -m scripts.soak --minutes 3

Each utterance is first recorded alone; from then on it must sound the same under any load. The first half injects
faults: a failed codec call, a prefill out of memory, processes killed or stopped. The second half has none, and
compares the resources of the server's processes. Exits with 1 if a request hung, had other audio, or ended with a wrong
outcome.
"""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import grpc
import numpy as np
import torch
import typer
from rich.console import Console
from tritonclient.grpc import service_pb2_grpc

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import encode
from qwen3_tts_client.records.environment import environment
from qwen3_tts_client.stream import Timeouts
from qwen3_tts_client.sync_stream import speak
from scripts.benchmarks.common import origin_of
from scripts.soak.callers import KINDS, MIXED, Caller, Outcome
from scripts.soak.faults import Fault, Faults
from scripts.soak.figures import Figures
from scripts.soak.server import Server, Setting, launched
from scripts.soak.utterances import Utterance, requests
from scripts.synthetic.configs import Size

# Further outcomes allowed during a fault.
FAULT_OUTCOMES = {"error", "unavailable", "disconnected", "cancelled"}
TIMED_OUT = "timeout"
# After a refused connection.
PAUSE_SECONDS = 0.2
IDLE_SECONDS = 20
# Shares of the time. A new server allocates some memory lazily, until it is warm.
WITH_FAULTS, WARM_UP = 0.5, 0.1
SETTINGS = {
    "QWEN3_TTS_CALL_TIMEOUT_SECONDS": "10",
    "QWEN3_TTS_SEQUENCE_IDLE_SECONDS": "3",
    "QWEN3_TTS_PART_TEXT_TOKENS": "20",
    # Makes streamed words sound like the whole text.
    "QWEN3_TTS_TEXT_LAYOUT": "streaming",
    # Makes equal seeds sound alike beside others, on a GPU too.
    "QWEN3_TTS_BATCH_INVARIANT": "true",
}
# Failures printed.
SHOWN = 20
console = Console()


@dataclass
class Tally:
    """Outcomes of the requests; `unreached` counts refused connections."""

    outcomes: list[Outcome] = field(default_factory=list)
    unreached: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, outcome: Outcome) -> None:
        with self._lock:
            self.outcomes.append(outcome)

    def add_unreached(self) -> None:
        with self._lock:
            self.unreached += 1

    def wrong(self, faults: list[Fault]) -> list[Outcome]:
        """Requests with a wrong outcome, except hung ones and those with other audio."""
        return [o for o in self.outcomes if o.result not in (MIXED, TIMED_OUT) and not is_right(o, faults)]

    def of_result(self, result: str) -> list[Outcome]:
        return [outcome for outcome in self.outcomes if outcome.result == result]


def is_right(outcome: Outcome, faults: list[Fault]) -> bool:
    if outcome.result == KINDS[outcome.kind].expected:
        return True
    overlaps = any(fault.overlaps(outcome.began, outcome.ended) for fault in faults)
    return overlaps and outcome.result in FAULT_OUTCOMES


def main(
    minutes: Annotated[float, typer.Option(min=0.5)] = 3.0,
    callers: Annotated[int, typer.Option(min=1, help="concurrent")] = 12,
    size: Annotated[Size, typer.Option(help="of the synthetic checkpoints")] = "tiny",
    form: Annotated[str, typer.Option(help="of the codec, onnx or python")] = "onnx",
    fault_interval: Annotated[float, typer.Option(help="seconds between two faults")] = 10.0,
    folder: Annotated[Path, typer.Option(help="checkpoints, repository, the server's log")] = Path("build/soak"),
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    setting = Setting(folder.resolve(), size, form)
    setting.prepare()
    seconds, tally = minutes * 60, Tally()
    with launched(setting, SETTINGS) as server:
        utterances = list(record_alone(server))
        console.print(f"{len(utterances)} utterances recorded alone")
        faults = Faults(setting, server, fault_interval, partial(is_serving, server, utterances))
        call = partial(calling, server, utterances, tally, callers)
        with call(), injected(faults):
            time.sleep(seconds * WITH_FAULTS)
        console.print(f"{len(tally.outcomes)} requests, {len(faults.restart_seconds)} restarts; no more faults")
        with call():
            time.sleep(seconds * WARM_UP)
        before = idle_figures(server)
        with call():
            time.sleep(seconds * (1 - WITH_FAULTS - WARM_UP))
        after = idle_figures(server)
    record = recorded(tally, faults, before, after)
    console.print(record)
    show_failures(tally, faults.happened)
    if output:
        output.write_text(json.dumps(record, indent=1) + "\n")
    raise typer.Exit(bool(record["hung"] or record["mixed"] or record["wrong_outcome"]))


def record_alone(server: Server) -> Iterator[Utterance]:
    stub = connect(server)
    for model, request in requests():
        chunks = [chunk.pcm for _, chunk in speak(stub, [encode(request, model)], Timeouts())]
        yield Utterance(model, request, np.concatenate(chunks), torch.cuda.is_available())


def connect(server: Server) -> service_pb2_grpc.GRPCInferenceServiceStub:
    return service_pb2_grpc.GRPCInferenceServiceStub(grpc.insecure_channel(f"localhost:{server.ports.grpc}"))


def is_serving(server: Server, utterances: list[Utterance]) -> bool:
    """Whether each model returns speech."""
    stub = connect(server)
    try:
        for utterance in {utterance.model: utterance for utterance in utterances}.values():
            for _ in speak(stub, utterance.whole(), Timeouts()):
                pass
    except SpeechError:
        return False
    return True


@contextmanager
def calling(server: Server, utterances: list[Utterance], tally: Tally, count: int) -> Iterator[None]:
    """Runs `count` callers until the block ends; they finish requests in flight."""
    stop = threading.Event()

    def run(seed: int) -> None:
        with closing(Caller(server.ports, utterances, seed)) as caller:
            while not stop.is_set():
                outcome = caller.call()
                if outcome.result == "disconnected" and "Connection refused" in outcome.message:
                    tally.add_unreached()
                    stop.wait(PAUSE_SECONDS)
                else:
                    tally.add(outcome)

    with running([partial(run, len(tally.outcomes) + i) for i in range(count)]):
        try:
            yield
        finally:
            stop.set()


@contextmanager
def injected(faults: Faults) -> Iterator[None]:
    stop = threading.Event()
    with running([partial(faults.run, stop)]):
        try:
            yield
        finally:
            stop.set()


@contextmanager
def running(jobs: list[Callable[[], None]]) -> Iterator[None]:
    """Runs each job in a thread; waits for all, and re-raises their exceptions."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        futures = [pool.submit(job) for job in jobs]
        yield
    for future in futures:
        future.result()


def idle_figures(server: Server) -> Figures:
    """Resources of the idle server: the fewest sockets within IDLE_SECONDS, since it closes connections late."""
    found = []
    for _ in range(IDLE_SECONDS):
        time.sleep(1)
        found.append(Figures.of(server.processes))
    return min(found, key=lambda figures: (figures.sockets, figures.fds, figures.threads))


def recorded(tally: Tally, faults: Faults, before: Figures, after: Figures) -> dict[str, Any]:
    return {
        **origin_of("scripts.soak", environment()),
        "requests": len(tally.outcomes),
        "hung": len(tally.of_result(TIMED_OUT)),
        "mixed": len(tally.of_result(MIXED)),
        "wrong_outcome": len(tally.wrong(faults.happened)),
        "unreached": tally.unreached,
        "restarts": len(faults.restart_seconds),
        "slowest_restart_s": round(max(faults.restart_seconds, default=0.0), 1),
        # Servers whose front end answered nobody, which no fault asks for (scripts/server/stream_check.py).
        "front_end_hangs": faults.setting.log.read_text(errors="replace").count("stream check: "),
        "faults": Counter(fault.name for fault in faults.happened),
        "kinds": Counter(f"{outcome.kind}: {outcome.result}" for outcome in tally.outcomes),
        **before.named("before"),
        **after.named("after"),
    }


def show_failures(tally: Tally, faults: list[Fault]) -> None:
    failures = [*tally.of_result(TIMED_OUT), *tally.of_result(MIXED), *tally.wrong(faults)]
    for outcome in failures[:SHOWN]:
        console.print(outcome, markup=False)


if __name__ == "__main__":
    typer.run(main)
