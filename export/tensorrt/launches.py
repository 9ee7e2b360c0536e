"""Records the launches of the codec step's fused kernels, shape by shape, without running them.

A recorded argument is a number, None, or an address: a byte offset into the constants (weights and tables), an input,
the output, the tables of rows (code2wav_step.kernels.places), or the workspace, where each temporary tensor is
allocated for its lifetime.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from code2wav_step.kernel_ops import KernelOps
from code2wav_step.kernels.hopper import CudaLaunch
from code2wav_step.step import Step
from code2wav_step.weights import StepWeights
from qwen3_tts_engine.codec.contract import PLACES_SIZE

# Bytes to which the start of any tensor is aligned; kernels are compiled for pointers that are multiples of 16.
ALIGNMENT = 256
POINTER_ALIGNMENT = 16
META = torch.device("meta")


class Base(IntEnum):
    """The memory that an address is an offset into."""

    CODES = 0
    PLACES = 1
    PCM = 2
    WORKSPACE = 3
    CONSTANTS = 4
    ADDRESSES = 5
    KEYS = 6
    # A number, or a pointer whose type alone matters.
    NUMBER = 7


@dataclass(frozen=True)
class Address:
    """`offset` bytes into `base`, of elements of `dtype`."""

    base: Base
    offset: int
    dtype: torch.dtype


Argument = Address | int | float | None


@dataclass(frozen=True)
class Launch:
    """One launch of a Triton function, whose options are its compile-time arguments and warps, or of a CUDA form.

    Arguments are of the type Argument; during recording, tensors stand in for addresses.
    """

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    options: dict[str, Any]


@dataclass(frozen=True)
class Recording:
    """The step for `rows` x `frames`; the workspace has `workspace` bytes."""

    rows: int
    frames: int
    workspace: int
    launches: list[Launch]


@dataclass
class Constants:
    """Weights and tables, concatenated in order of first use."""

    parts: list[Tensor] = field(default_factory=list)
    size: int = 0
    _offsets: dict[int, int] = field(default_factory=dict)

    def offset(self, tensor: Tensor) -> int:
        """Offset of a tensor's storage, in bytes."""
        storage = tensor.untyped_storage()
        if (key := storage.data_ptr()) not in self._offsets:
            self._offsets[key] = self.size
            self.parts.append(torch.empty(0, dtype=torch.uint8).set_(storage))
            self.size += _aligned(storage.nbytes())
        return self._offsets[key]

    def blocks(self) -> Iterator[bytes]:
        """The bytes of all constants, `size` in total."""
        for part in self.parts:
            yield part.numpy().tobytes().ljust(_aligned(part.numel()), b"\0")


@dataclass
class Temporary:
    """A tensor in the workspace: bytes, and the first and the last launch that use it."""

    size: int
    first: int
    last: int

    def lives_with(self, other: "Temporary") -> bool:
        return self.first <= other.last and other.first <= self.last


class RecordingOps(KernelOps):
    """Records launches for inputs on the meta device; constants are tensors on the CPU."""

    def __init__(self, weights: StepWeights) -> None:
        super().__init__(weights.config, torch.device("cpu"))
        self._fast = True
        self.launches: list[Launch] = []

    def _launch(self, kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
        self.launches.append(Launch(kernel, grid, arguments, options))

    def _launch_cuda(self, launch: CudaLaunch) -> None:
        self._launch(launch.form, (launch.blocks,), *launch.arguments)


def record(weights: StepWeights, constants: Constants, rows: int, frames: int) -> Recording:
    """`weights` are FP16 on the CPU."""
    ops, inputs = RecordingOps(weights), call_inputs(weights, rows, frames)
    named = {_key(tensor): base for base, tensor in inputs.items()}
    named[_key(decode(weights, ops, inputs))] = Base.PCM
    temporaries = _temporaries(ops.launches, set(named))
    offsets, workspace = plan(temporaries)

    def address(argument: Any) -> Argument:
        if not isinstance(argument, Tensor):
            return argument  # type: ignore[no-any-return]
        begin = int(argument.storage_offset()) * argument.element_size()
        if argument.device != META:
            base, begin = Base.CONSTANTS, begin + constants.offset(argument)
        else:
            key = _key(argument)
            base = named.get(key, Base.WORKSPACE)
            begin += offsets.get(key, 0)
        assert begin % POINTER_ALIGNMENT == 0
        return Address(base, begin, argument.dtype)

    launches = [replace(launch, arguments=tuple(map(address, launch.arguments))) for launch in ops.launches]
    return Recording(rows, frames, workspace, launches)


def call_inputs(weights: StepWeights, rows: int, frames: int) -> dict[Base, Tensor]:
    """The inputs and tables of a call, on the meta device."""
    config = weights.config
    num_rows, int32 = config.contract.num_rows, torch.int32
    return {
        Base.CODES: torch.empty(rows, frames, config.num_quantizers, dtype=int32, device=META),
        Base.PLACES: torch.empty(rows, PLACES_SIZE, dtype=int32, device=META),
        Base.ADDRESSES: torch.empty(num_rows + 1, dtype=torch.int64, device=META),
        Base.KEYS: torch.empty(num_rows, dtype=int32, device=META),
        # States are read and written at their addresses.
        Base.NUMBER: torch.empty(rows, config.state_size, dtype=weights.codebooks.dtype, device=META),
    }


def decode(weights: StepWeights, ops: KernelOps, inputs: dict[Base, Tensor]) -> Tensor:
    """The samples of a call."""
    history, denied = ops.open_rows(inputs[Base.PLACES], inputs[Base.ADDRESSES], inputs[Base.KEYS])
    waveform, _ = Step(weights, ops)(inputs[Base.CODES], inputs[Base.NUMBER], history)
    return ops.to_int16(waveform, denied)


def _temporaries(launches: Sequence[Launch], named: set[int]) -> dict[int, Temporary]:
    found: dict[int, Temporary] = {}
    for i, launch in enumerate(launches):
        for argument in launch.arguments:
            if isinstance(argument, Tensor) and argument.device == META and (key := _key(argument)) not in named:
                size = argument.untyped_storage().nbytes()
                found.setdefault(key, Temporary(size, i, i)).last = i
    return found


def plan(temporaries: dict[int, Temporary]) -> tuple[dict[int, int], int]:
    """Offsets at which temporaries with overlapping lifetimes do not overlap, and the total size."""
    offsets: dict[int, int] = {}
    end = 0
    for key, temporary in sorted(temporaries.items(), key=lambda item: -item[1].size):
        others = [(offsets[k], temporaries[k].size) for k in offsets if temporaries[k].lives_with(temporary)]
        offset = 0
        for begin, size in sorted(others):
            if offset + temporary.size <= begin:
                break
            offset = max(offset, begin + _aligned(size))
        offsets[key] = offset
        end = max(end, offset + _aligned(temporary.size))
    return offsets, end


def _key(tensor: Tensor) -> int:
    """Identifies a tensor's storage while the recording keeps it alive."""
    return int(tensor.untyped_storage()._cdata)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
