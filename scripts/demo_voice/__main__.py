"""python -m scripts.demo_voice: train a small checkpoint that speaks, from flite's speech."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from scripts.demo_voice import snapshots
from scripts.demo_voice.sizes import SizeName, sizes

app = typer.Typer(help=__doc__, no_args_is_help=True)
Folder = Annotated[Path, typer.Option(help="shards, codes and snapshots")]
Seconds = Annotated[float, typer.Option(help="budget of this run")]
Total = Annotated[float, typer.Option(help="budget of all runs: the learning rate falls until then")]
Size = Annotated[SizeName, typer.Option(help="mini: for tests")]
CARRIED = ("codec.pt", "codec_frozen.pt", "codes.npz", "talker.pt")


@app.command()
def texts(
    packages: Annotated[Path, typer.Option(help="folder with the unpacked Debian packages of data/LICENSES.md")],
    verses: Annotated[Path, typer.Option(help="output of `bible -f gen1:1-rev22:21`")],
) -> None:
    """Choose the sentences anew, and learn the tokenizer from them."""
    from scripts.demo_voice import corpus, tokenizer
    from scripts.demo_voice.texts import DATA, training_texts, write_texts

    sources = corpus.Sources(packages, verses)
    write_texts(corpus.choose(sources, DATA / "fillers.json", DATA / "templates.txt"))
    tokenizer.write(tokenizer.learn(list(training_texts())))


@app.command()
def synthesize(
    folder: Folder,
    seconds: Seconds = 3600.0,
    workers: Annotated[int, typer.Option(help="processes")] = 8,
    utterances: Annotated[int, typer.Option(help="how many of the texts")] = 100_000,
) -> None:
    """Speak the training texts with flite."""
    from scripts.demo_voice.synthesis import synthesize

    synthesize(folder / "shards", workers, seconds, utterances)


@app.command()
def train_codec(
    folder: Folder,
    seconds: Seconds = 1500.0,
    total: Total = 1500.0,
    freeze: Annotated[float, typer.Option(help="seconds of all runs after which the codes are fixed")] = 600.0,
    batch: Annotated[int, typer.Option(help="crops of a step")] = 24,
    frames: Annotated[int, typer.Option(help="frames of a crop")] = 24,
    hours: Annotated[float, typer.Option(help="speech to learn from")] = 12.0,
    size: Size = "full",
) -> None:
    """Train the codec on the shards, also on those that arrive meanwhile."""
    from scripts.demo_voice.codec.runs import train

    budgets = {"seconds": seconds, "total": total, "freeze": freeze}
    train(folder, sizes(size), **budgets, batch=batch, frames=frames, hours=hours)


@app.command()
def encode(folder: Folder, size: Size = "full") -> None:
    """Encode the shards with the frozen codec."""
    from scripts.demo_voice.encoding import encode

    codes = encode(folder, sizes(size))
    typer.echo(f"{len(codes.frames)} utterances, {len(codes.codes) * 0.08 / 3600:.1f} h")


@app.command()
def train_talker(
    folder: Folder,
    seconds: Seconds = 1800.0,
    total: Total = 1800.0,
    batch: Annotated[int, typer.Option(help="packs of 384 rows in a step")] = 64,
    frames: Annotated[int, typer.Option(help="frames of a step that teach the code predictor")] = 8192,
    size: Size = "full",
) -> None:
    """Train talker and code predictor on the codes."""
    from scripts.demo_voice.talker.training import train

    train(folder, sizes(size), seconds=seconds, total=total, batch=batch, frames=frames)


@app.command()
def pack(
    folder: Folder, checkpoint: Annotated[Path, typer.Option(help="folder to write")], size: Size = "full"
) -> None:
    """Write the checkpoint in the released layout."""
    from scripts.demo_voice.packing import pack

    typer.echo(f"{checkpoint}: {pack(folder, checkpoint, sizes(size)) / 1e6:.1f} MB")


@app.command()
def evaluate(
    checkpoint: Annotated[Path | None, typer.Option(help="packed checkpoint")] = None,
    count: Annotated[int, typer.Option(help="held-out sentences for each speaker")] = 100,
    layout: Annotated[Literal["full", "streaming"], typer.Option(help="of the prompt rows")] = "full",
    output: Annotated[Path | None, typer.Option(help="folder for WAV files of the first sentences")] = None,
    folder: Annotated[Path | None, typer.Option(help="also evaluate copies by its codec")] = None,
    size: Size = "full",
) -> None:
    """Compare held-out sentences with the teacher's: words recognised, right text nearest, durations."""
    from scripts.demo_voice.evaluation import evaluate

    for name, report in evaluate(checkpoint, count, layout, output, folder, sizes(size)):
        typer.echo(f"{name:24} {report}")


@app.command()
def carry(folder: Folder, out: Annotated[Path, typer.Option(help="folder for the parts")]) -> None:
    """Write codes and compact snapshots in parts of at most 15 MiB."""
    snapshots.carry(folder, CARRIED, out)


@app.command()
def restore(folder: Folder, parts: Annotated[Path, typer.Option(help="folder that `carry` wrote")]) -> None:
    """Join the parts that `carry` wrote."""
    typer.echo(", ".join(snapshots.restore(parts, folder)))


if __name__ == "__main__":
    app()
