"""Builds an ONNX graph node by node. Its weights stay in the memory of their tensors, also beyond 2 GiB."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import helper, numpy_helper
from torch import Tensor

# Since 1.29 ONNX Runtime reports events to Microsoft unless this is set before it is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
import onnxruntime

from qwen3_tts_engine.config import CpuWeights
from qwen3_tts_engine.talker import int8

# The first one with Swish and TensorScatter.
OPSET = 24
IR_VERSION = 11
ELEMENTS = {
    torch.float32: onnx.TensorProto.FLOAT,
    torch.int32: onnx.TensorProto.INT32,
    torch.int64: onnx.TensorProto.INT64,
    torch.uint8: onnx.TensorProto.UINT8,
    torch.bool: onnx.TensorProto.BOOL,
}
# ONNX Runtime's levels: errors. TensorScatter warns of every copy.
ERRORS = 3

# ONNX Runtime's own operators. Its product by blocks in int8 rounds rows as it does weights.
OWN, IN_INT8 = "com.microsoft", 4
# The uint8 value of 0.
ZERO = 128

Value = str
"""The name of a value in the graph."""


class OnnxGraph:
    def __init__(self, name: str, weights: CpuWeights = "float32") -> None:
        """`weights` are those of products."""
        self._name, self._nodes, self._count = name, list[onnx.NodeProto](), 0
        self._is_int8 = weights == "int8"
        # Each weight by its address, and kept, so that no other one takes its place in memory.
        self._quantized = dict[int, tuple[Tensor, Value, Value]]()
        self._inputs, self._outputs = list[onnx.ValueInfoProto](), list[onnx.ValueInfoProto]()
        self._initializers = dict[str, onnx.TensorProto]()
        self._weights = dict[str, Tensor]()

    def input(self, name: str, shape: Sequence[int | str], dtype: torch.dtype = torch.float32) -> Value:
        """An input; a dimension with a name may have any size."""
        self._inputs.append(helper.make_tensor_value_info(name, ELEMENTS[dtype], shape))
        return name

    def output(self, name: str, value: Value, dtype: torch.dtype = torch.float32) -> None:
        self._nodes.append(helper.make_node("Identity", [value], [name]))
        self._outputs.append(helper.make_tensor_value_info(name, ELEMENTS[dtype], None))

    def weight(self, tensor: Tensor) -> Value:
        """A constant in the memory of a tensor, which must be contiguous."""
        assert tensor.is_contiguous()
        name = f"weight_{tensor.data_ptr():x}_{tensor.numel()}"
        if name not in self._weights:
            self._weights[name] = tensor
            proto = onnx.TensorProto(name=name, data_type=ELEMENTS[tensor.dtype], dims=tensor.shape)
            proto.data_location = onnx.TensorProto.EXTERNAL
            proto.external_data.add(key="location", value="memory")
            self._initializers[name] = proto
        return name

    def integers(self, *values: int) -> Value:
        """A constant int64 [values]."""
        return self._constant("integers", np.array(values, np.int64))

    def integer(self, value: int) -> Value:
        """A constant int64 scalar."""
        return self._constant("integer", np.array(value, np.int64))

    def floats(self, values: Any) -> Value:
        """A constant float32 scalar or array."""
        return self._constant("floats", np.array(values, np.float32))

    def split(self, value: Value, sizes: Sequence[int]) -> list[Value]:
        """Parts of a value [..., columns], each of so many columns."""
        return self.ops("Split", len(sizes), value, self.integers(*sizes), axis=-1)

    def cast(self, value: Value, dtype: torch.dtype) -> Value:
        return self.op("Cast", value, to=ELEMENTS[dtype])

    def op(self, kind: str, *inputs: Value, **attributes: Any) -> Value:
        """The output of a new node; an empty name stands for an optional input."""
        return self.ops(kind, 1, *inputs, **attributes)[0]

    def ops(self, kind: str, count: int, *inputs: Value, **attributes: Any) -> list[Value]:
        """The first `count` outputs of a new node."""
        outputs = [f"value_{self._count + i}" for i in range(count)]
        self._count += count
        self._nodes.append(helper.make_node(kind, list(inputs), outputs, **attributes))
        return outputs

    def write(self, path: Path, metadata: Mapping[str, str]) -> None:
        """Writes the graph and its weights, of at most 2 GiB, with `metadata` for whoever loads the file."""
        stored = {name: numpy_helper.from_array(tensor.numpy(), name) for name, tensor in self._weights.items()}
        model = self._model(self._initializers | stored)
        helper.set_model_props(model, dict(metadata))
        onnx.save(model, path)

    def load(self, threads: int) -> "Program":
        """Loads the graph; a product's weight is copied in the layout of its kernel."""
        model = self._model(self._initializers)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.log_severity_level = threads, ERRORS
        # Threads that spin would take the cores of the codec.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        values = [onnxruntime.OrtValue.from_dlpack(tensor) for tensor in self._weights.values()]
        options.add_external_initializers(list(self._weights), values)
        providers = ["CPUExecutionProvider"]
        return Program(onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers))

    def _model(self, initializers: Mapping[str, onnx.TensorProto]) -> onnx.ModelProto:
        graph = helper.make_graph(self._nodes, self._name, self._inputs, self._outputs, list(initializers.values()))
        # Operators of ONNX Runtime where the graph has them: other tools read it elsewhere.
        opsets = {"": OPSET} | {node.domain: 1 for node in self._nodes if node.domain}
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        return helper.make_model(graph, opset_imports=imports, ir_version=IR_VERSION)

    def product(self, x: Value, weight: Tensor) -> Value:
        """x [..., inputs] @ weight [outputs, inputs].T."""
        if not self._is_int8:
            return self.op("FusedMatMul", x, self.weight(weight), domain=OWN, transB=1)
        outputs, inputs = weight.shape
        sizes = {"N": outputs, "K": inputs, "block_size": int8.BLOCK, "bits": 8}
        return self.op("MatMulNBits", x, *self._int8_weight(weight), domain=OWN, accuracy_level=IN_INT8, **sizes)

    def _int8_weight(self, weight: Tensor) -> tuple[Value, Value]:
        """A weight's values uint8 [outputs, blocks, BLOCK], and their steps [outputs, blocks]."""
        if weight.data_ptr() not in self._quantized:
            values, step = int8.quantized(weight)
            moved = (values.to(torch.int16) + ZERO).to(torch.uint8)
            self._quantized[weight.data_ptr()] = (weight, self.weight(moved), self.weight(step))
        return self._quantized[weight.data_ptr()][1:]

    def _constant(self, kind: str, array: np.ndarray) -> Value:
        name = f"{kind}_{array.tolist()}".replace(" ", "")
        self._initializers.setdefault(name, numpy_helper.from_array(array, name))
        return name


def rms_norm(graph: OnnxGraph, x: Value, weight: Tensor, eps: float) -> Value:
    return graph.op("RMSNormalization", x, graph.weight(weight), axis=-1, epsilon=eps)


class Program:
    """A loaded graph."""

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session

    def run(self, outputs: Sequence[str], inputs: Mapping[str, np.ndarray]) -> list[np.ndarray]:
        """Raises RuntimeError, as PyTorch does, for instance without memory."""
        try:
            found: list[np.ndarray] = self._session.run(outputs, inputs)
        except Exception as error:  # ONNX Runtime's have no other base
            raise RuntimeError(f"ONNX Runtime: {error}") from error
        return found
