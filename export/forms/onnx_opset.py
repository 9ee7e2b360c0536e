"""Rewrites the exporter's ONNX file for the parsers of all TensorRT versions.

The parser of TensorRT 8.6 stops at opset 17, ignores the range of Shape, and supports Clip for floating point only.
"""

from pathlib import Path

import numpy as np
import onnx
from onnx import GraphProto, NodeProto, helper, numpy_helper
from onnx.numpy_helper import from_array

OPSET = 17


def to_opset_17(path: Path) -> None:
    """Rewrites the file in place; raises onnx's ValidationError if the result is invalid."""
    model = onnx.load(path)
    nodes = [portable for node in model.graph.node for portable in _portable(node, model.graph)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    for opset in model.opset_import:
        opset.version = OPSET if opset.domain == "" else opset.version
    onnx.checker.check_model(model)
    onnx.save(model, path)


def _portable(node: NodeProto, graph: GraphProto) -> list[NodeProto]:
    if node.op_type == "ReduceMean":
        return [_reduce_mean(node, graph)]
    if node.op_type == "Shape":
        return _shape(node, graph)
    if node.op_type == "Clip":
        return _clip(node)
    if node.op_type == "Split":
        _drop(node, "num_outputs")
    return [node]


def _reduce_mean(node: NodeProto, graph: GraphProto) -> NodeProto:
    axes = next(numpy_helper.to_array(tensor) for tensor in graph.initializer if tensor.name == node.input[1])
    keepdims = {attribute.name: attribute.i for attribute in node.attribute}["keepdims"]
    return helper.make_node("ReduceMean", node.input[:1], node.output, node.name, axes=axes.tolist(), keepdims=keepdims)


def _shape(node: NodeProto, graph: GraphProto) -> list[NodeProto]:
    """Shape(start, end) as Shape and Gather."""
    found = {attribute.name: attribute.i for attribute in node.attribute}
    if "end" not in found:
        assert not found.get("start"), f"{node.name}: Shape with a start but no end"
        _drop(node, "start")
        return [node]
    index, whole = f"{node.output[0]}_index", f"{node.output[0]}_whole"
    graph.initializer.append(from_array(np.arange(found["start"], found["end"], dtype=np.int64), index))
    return [
        helper.make_node("Shape", node.input, [whole], f"{node.name}_whole"),
        helper.make_node("Gather", [whole, index], node.output, node.name, axis=0),
    ]


def _clip(node: NodeProto) -> list[NodeProto]:
    """Clip(value, lowest, highest) as Max and Min; one limit may be missing."""
    value, *limits = node.input
    steps = [step for step in zip(("Max", "Min"), limits, strict=False) if step[1]]
    nodes = []
    for operation, limit in steps:
        result = node.output[0] if (operation, limit) == steps[-1] else f"{node.output[0]}_{operation}"
        nodes.append(helper.make_node(operation, [value, limit], [result], f"{node.name}_{operation}"))
        value = result
    return nodes


def _drop(node: NodeProto, name: str) -> None:
    kept = [attribute for attribute in node.attribute if attribute.name != name]
    del node.attribute[:]
    node.attribute.extend(kept)
