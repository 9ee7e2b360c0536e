"""A reference encoder: a program of torch.export on one device, or an ONNX graph on a CPU."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export.passes import move_to_device_pass

MODEL_FILE, ONNX_FILE = "model.pt2", "model.onnx"
CONTRACT = "contract.json"
EXPORT = "python -m export --form {}"
# ONNX Runtime's threads; the talker needs the other cores.
THREADS = 2


class InvalidInputError(ValueError):
    """A tensor does not fit the program; the message names the input, the given and the expected shapes."""


class Input(NamedTuple):
    name: str
    dtype: str
    """Attribute of torch."""
    smallest: list[int]
    """Shape."""
    largest: list[int]


@dataclass(frozen=True)
class Contract:
    """What a program takes and returns; part of the model file."""

    inputs: list[Input]
    """In the order of the program's arguments."""
    output: str
    warm_up: list[dict[str, list[int]]]
    """Shapes by input, up to those of the longest usual reference."""

    @classmethod
    def from_json(cls, text: str) -> "Contract":
        values = json.loads(text)
        return cls(**values | {"inputs": [Input(*value) for value in values["inputs"]]})

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def arguments(self, tensors: Mapping[str, Tensor]) -> list[Tensor]:
        """The program's arguments. Raises InvalidInputError."""
        return [_checked(declared, tensors.get(declared.name)) for declared in self.inputs]


class EncoderProgram:
    """Runs one reference at a time, on a CUDA stream of its own."""

    def __init__(self, module: Any, contract: Contract, device: torch.device) -> None:
        self.contract = contract
        self._module, self._device = module, device
        # Answering then waits for nothing else on the device.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    @classmethod
    def load(cls, path: Path, device: torch.device) -> "EncoderProgram":
        """Raises ValueError naming the file."""
        if not path.is_file():
            raise _missing(path, "python")
        files = {CONTRACT: ""}
        try:
            program = torch.export.load(path, extra_files=files)
            contract = Contract.from_json(files[CONTRACT])
        except Exception as error:
            raise _unreadable(path, "python", error) from error
        # Distances to codebook entries are close to each other, and TF32 has the precision of half floats.
        torch.set_float32_matmul_precision("highest")
        return cls(move_to_device_pass(program, str(device)).module(), contract, device)

    @torch.inference_mode()
    def __call__(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """The output on the host, of inputs on any device. Raises InvalidInputError."""
        arguments = self.contract.arguments(tensors)
        # cuDNN plans each convolution anew for each length, and nearly every reference has a length of its own. The
        # convolutions of PyTorch are products with unfolded inputs, which require no plan.
        with torch.cuda.stream(self._stream), torch.backends.cudnn.flags(enabled=False, allow_tf32=False):
            output: Tensor = self._module(*(tensor.to(self._device) for tensor in arguments))
            # Copying to the host waits for the stream.
            return output.contiguous().cpu()

    def warm_up(self) -> None:
        """Loads the kernels and reserves the memory of usual references, so that the first one does not wait for it."""
        dtypes = {declared.name: getattr(torch, declared.dtype) for declared in self.contract.inputs}
        for shapes in self.contract.warm_up:
            self({name: torch.ones(shape, dtype=dtypes[name]) for name, shape in shapes.items()})


class OnnxEncoder:
    """Runs one reference at a time, by ONNX Runtime."""

    def __init__(self, session: Any, contract: Contract) -> None:
        self.contract, self._session = contract, session

    @classmethod
    def load(cls, path: Path) -> "OnnxEncoder":
        """Raises ValueError naming the file."""
        if not path.is_file():
            raise _missing(path, "onnx")
        # Since 1.29 ONNX Runtime reports events to Microsoft unless this is set before it is imported.
        os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
        import onnxruntime  # only here: a GPU needs none

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = THREADS
        try:
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            contract = Contract.from_json(session.get_modelmeta().custom_metadata_map[CONTRACT])
        except Exception as error:
            raise _unreadable(path, "onnx", error) from error
        return cls(session, contract)

    def __call__(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """See EncoderProgram."""
        arguments = zip(self.contract.inputs, self.contract.arguments(tensors), strict=True)
        [output] = self._session.run([self.contract.output], {d.name: tensor.cpu().numpy() for d, tensor in arguments})
        return torch.from_numpy(output)


def _missing(path: Path, form: str) -> ValueError:
    return ValueError(f"{path}: missing; `{EXPORT.format(form)}` writes it from a Base checkpoint")


def _unreadable(path: Path, form: str, error: Exception) -> ValueError:
    return ValueError(f"{path}: cannot be loaded: {error}; run `{EXPORT.format(form)}` again")


def _checked(declared: Input, tensor: Tensor | None) -> Tensor:
    if tensor is None:
        raise InvalidInputError(f"{declared.name}: required")
    given, dtype = list(tensor.shape), str(tensor.dtype).removeprefix("torch.")
    sizes = zip(declared.smallest, given, declared.largest, strict=False)
    fits = len(given) == len(declared.smallest) and all(low <= size <= high for low, size, high in sizes)
    if dtype != declared.dtype or not fits:
        expected = f"{declared.dtype} {declared.smallest} to {declared.largest} expected"
        raise InvalidInputError(f"{declared.name}: {dtype} {given} given, {expected}")
    return tensor
