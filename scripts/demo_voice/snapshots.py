"""Snapshots of a training: complete ones to continue from, and compact ones to carry to another machine."""

import io
from pathlib import Path
from typing import Any

import torch

State = dict[str, Any]
PART_BYTES = 15 << 20
# What a compact snapshot leaves out; training continues without it after a few hundred steps.
RECOMPUTED = ("optimizers", "averages")


def save(state: State, path: Path) -> None:
    part = path.with_suffix(".part")
    torch.save(state, part)
    part.rename(path)


def load(path: Path) -> State:
    state: State = torch.load(path, map_location="cpu", weights_only=True)
    return state


def carry(folder: Path, names: tuple[str, ...], out: Path) -> None:
    """Writes files of `folder`, snapshots in their compact form, into `out` as parts of at most 15 MiB."""
    out.mkdir(parents=True, exist_ok=True)
    for name in names:
        if not (path := folder / name).is_file():
            continue
        content = compact(load(path)) if path.suffix == ".pt" else path.read_bytes()
        for i, at in enumerate(range(0, len(content), PART_BYTES)):
            (out / f"{name}.{i:02}").write_bytes(content[at : at + PART_BYTES])


def restore(parts: Path, folder: Path) -> list[str]:
    """Joins the parts that `carry` wrote; returns the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    found = sorted(parts.glob("*.[0-9][0-9]"))
    names = sorted({path.stem for path in found})
    for name in names:
        content = b"".join(path.read_bytes() for path in found if path.stem == name)
        (folder / name).write_bytes(content)
    return names


def compact(state: State) -> bytes:
    """Weights in FP16, in which averages replace the parameters that they average."""
    averaged = state.get("averages") or {}
    small = {
        key: _halved(value | averaged.get(key, {})) if _is_weights(value) else value
        for key, value in state.items()
        if key not in RECOMPUTED
    }
    buffer = io.BytesIO()
    torch.save(small, buffer)
    return buffer.getvalue()


def _is_weights(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(tensor, torch.Tensor) for tensor in value.values())


def _halved(weights: State) -> State:
    return {name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in weights.items()}
