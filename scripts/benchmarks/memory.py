"""GPU memory of a server by its number of streams, and how many streams it chooses on smaller cards.

    python -m scripts.benchmarks.memory --checkpoint CHECKPOINT --artifact-dir FOLDER --output RECORD

Measured as what the GPU has less of than before the server, once it is ready and once it has served as many streams.
A smaller card is a share of this one while the rest is taken.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from qwen3_tts_client.records.environment import commit
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.talker.memory_plan import GIB
from scripts.benchmarks.common import origin, show
from scripts.benchmarks.serving import REPOSITORY, read_summary, rows, run, run_bench, server_of
from scripts.server.installation import ServerError

PLAN = re.compile(r"GPU memory: .* GiB free; (?P<parts>.*?\((?P<streams>\d+) streams?, .*?)\"?$", re.MULTILINE)
REFUSAL = re.compile(r"max_streams: .* are required .*? reserve \d+\.\d")
# Columns of a serving benchmark's row.
COUNTS = ("audio_s_per_s", "ttfa_p50_ms", "stalled_over_50ms", "errors")
# The share of a card that its driver leaves free.
USABLE = 0.95
# A server that ended gives its memory back a little later.
SETTLE_SECONDS = 2.0
console = Console()


def main(
    checkpoint: Annotated[str, typer.Option(help="folder or hub id")],
    artifact_dir: Annotated[Path, typer.Option(help="a folder without a record")],
    streams: Annotated[str, typer.Option(help="values of max_streams")] = "1,8,32,64,256",
    cards: Annotated[
        str, typer.Option(help="GiB of smaller cards, on which the server chooses; empty for none")
    ] = "6,8,24",
    speaker: Annotated[str, typer.Option(help="of the checkpoint")] = "vivian",
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", "python")
    config = Checkpoint.open(checkpoint).config
    settings = {"checkpoint": f"{config.tts_model_size} {config.tts_model_type}", "torch": torch.__version__}
    record = {**origin("scripts.benchmarks.memory", torch.cuda.get_device_name(), commit()), "settings": settings}
    found: list[dict[str, Any]] = []
    for row in measurements(
        checkpoint, artifact_dir, streams.split(","), list(filter(None, cards.split(","))), speaker
    ):
        found.append(row)
        # Written after each, since a run of all takes long.
        if output:
            output.write_text(json.dumps({**record, "rows": found}, indent=1) + "\n")
    show(found, console)


def measurements(
    checkpoint: str, artifact_dir: Path, streams: list[str], cards: list[str], speaker: str
) -> Iterator[dict[str, Any]]:
    for count in streams:
        yield measure(checkpoint, artifact_dir / f"streams-{count}", speaker, count)
    for card in cards:
        with only_free(USABLE * float(card)):
            yield measure(checkpoint, artifact_dir / f"card-{card}", speaker, "auto", float(card))


def measure(checkpoint: str, folder: Path, speaker: str, streams: str, card: float | None = None) -> dict[str, Any]:
    """A server with `streams`, or auto, of which `card` is the GPU's GiB: its plan, its memory and its load."""
    folder.mkdir()
    log = folder / "server.log"
    before = free_gib()
    settings = {"MAX_STREAMS": streams, "KERNELS": "required"}
    if card:
        settings["GPU_MEMORY_SHARE"] = str(card * GIB / torch.cuda.mem_get_info()[1])
    row: dict[str, Any] = {"card_gib": card, "max_streams": streams}
    try:
        with server_of(checkpoint, 1, log, [], settings):
            ready = before - free_gib()
            chosen = PLAN.search(log.read_text(errors="replace"))
            assert chosen, f"{log} has no plan"
            bench = ["bench", "--concurrency", chosen["streams"], "--measurement-interval", 4000, "--speaker", speaker]
            run_bench(*bench, "--max-frames", 71, "--artifact-dir", folder / "bench")
            loaded = before - free_gib()
    except ServerError:
        refused = REFUSAL.search(log.read_text(errors="replace"))
        if not refused:
            raise
        missing = dict.fromkeys(("streams", "ready_gib", "loaded_gib"))
        return row | missing | {"plan": refused[0]} | dict.fromkeys(COUNTS)
    finally:
        time.sleep(SETTLE_SECONDS)
    [load] = rows(read_summary(folder / "bench")["loads"])
    row |= {"streams": int(chosen["streams"]), "ready_gib": round(ready, 2), "loaded_gib": round(loaded, 2)}
    return row | {"plan": chosen["parts"]} | {name: load[name] for name in COUNTS}


def free_gib() -> float:
    torch.cuda.synchronize()
    return torch.cuda.mem_get_info()[0] / GIB


@contextmanager
def only_free(left: float) -> Iterator[None]:
    """Takes memory until `left` GiB are free."""
    taken = torch.empty(int((free_gib() - left) * GIB), dtype=torch.uint8, device="cuda")
    try:
        yield
    finally:
        del taken
        torch.cuda.empty_cache()


if __name__ == "__main__":
    typer.run(main)
