"""Serves with parts of a GPU's multiprocessors, as a smaller GPU would, with its own kernels and with the general ones.

    python -m scripts.benchmarks.gpu_parts --checkpoint CHECKPOINT --artifact-dir FOLDER --output RECORD

What a part of a GPU lacks is arithmetic; its memory stays as fast as that of the whole.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from scripts.benchmarks.common import origin_of, show
from scripts.benchmarks.serving import REPOSITORY, read_summary, rows, run, run_bench, server_of

SHARE_VARIABLE = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
# Columns of a serving benchmark's row that compare.
COLUMNS = ("load", "ttfa_p50_ms", "audio_s_per_s", "stalled_over_50ms", "errors")
console = Console()


def main(
    checkpoint: Annotated[str, typer.Option(help="folder or hub id")],
    artifact_dir: Annotated[Path, typer.Option(help="a folder without a record")],
    paths: Annotated[str, typer.Option(help="values of the setting kernel_path")] = "auto,general",
    shares: Annotated[str, typer.Option(help="percentages of the multiprocessors")] = "100,80,40,25",
    concurrency: Annotated[str, typer.Option(help="closed loops")] = "1,64,256",
    max_streams: Annotated[int, typer.Option(help="concurrent streams")] = 256,
    measurement_interval: Annotated[int, typer.Option(help="ms per load")] = 8_000,
    workers: Annotated[int, typer.Option(help="client processes")] = 4,
    speaker: Annotated[str, typer.Option(help="of the checkpoint")] = "vivian",
    max_frames: Annotated[int, typer.Option(help="of a request")] = 71,
    output: Annotated[Path | None, typer.Option(help="JSON record")] = None,
) -> None:
    artifact_dir.mkdir(parents=True, exist_ok=True)
    run("export", "--checkpoint", checkpoint, "--model-repository", REPOSITORY, "--form", "python")
    bench = [
        "bench",
        "--concurrency",
        concurrency,
        "--measurement-interval",
        measurement_interval,
        "--speaker",
        speaker,
    ]
    bench += ["--warmup-request-count", 16, "--workers", workers, "--max-frames", max_frames]
    found: list[dict[str, Any]] = []
    for path in paths.split(","):
        for share in map(int, shares.split(",")):
            folder, settings = artifact_dir / f"{path}-{share}", {"KERNEL_PATH": path, "KERNELS": "required"}
            folder.mkdir()
            part = {SHARE_VARIABLE: str(share)}
            with server_of(checkpoint, max_streams, folder / "server.log", [], settings, part):
                run_bench(*bench, "--artifact-dir", folder / "bench")
            summary = read_summary(folder / "bench")
            found += rows_of(path, share, summary)
            # Written after each, since a run of all takes long.
            if output:
                settings_of_run = {"max_streams": max_streams, "max_frames": max_frames}
                record = {
                    **origin_of("scripts.benchmarks.gpu_parts", summary),
                    "settings": settings_of_run,
                    "rows": found,
                }
                output.write_text(json.dumps(record, indent=1) + "\n")
    show(found, console)


def rows_of(path: str, share: int, summary: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """A row for each load: path, share and the columns of a serving benchmark that compare."""
    for row in rows(summary["loads"]):
        yield {"path": path, "share": share} | {name: row[name] for name in COLUMNS}


if __name__ == "__main__":
    typer.run(main)
