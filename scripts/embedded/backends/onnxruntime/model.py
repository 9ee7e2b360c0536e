"""Stands in for Triton's ONNX Runtime backend in the embedded server, which has only the Python backend."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime  # type: ignore[import-untyped]
import triton_python_backend_utils as pb_utils

# The server adds this folder, with the modules of ../shared, to sys.path.
from merged_runs import Answer, Arrays, Input, InvalidInputError, MergingModel, limits  # type: ignore[import-not-found]

DEFAULT_MODEL_FILENAME = "model.onnx"
THREADS = "intra_op_thread_count"


class TritonPythonModel:
    """Serves <repository>/<version>/<default_model_filename> of any model with the backend "onnxruntime"."""

    def initialize(self, args: dict[str, str]) -> None:
        _require_numpy_1()
        config = json.loads(args["model_config"])
        filename = config["default_model_filename"] or DEFAULT_MODEL_FILENAME
        session = _session(Path(args["model_repository"]) / args["model_version"] / filename, config)
        names = [output["name"] for output in config["output"]]
        # The file has the sizes that the configuration leaves open.
        metadata = session.get_modelmeta().custom_metadata_map
        dims = {tensor.name: _dims(tensor, metadata) for tensor in session.get_inputs()}
        inputs = tuple(_input(declared, dims[declared["name"]], config) for declared in config["input"])

        def run(feeds: Arrays) -> Arrays:
            return dict(zip(names, session.run(names, feeds), strict=True))

        self.model = MergingModel(inputs, config["max_batch_size"] > 0, run, np.concatenate)

    def execute(self, requests: list[Any]) -> list[Any]:
        feeds = [{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests]
        answers = self.model.answer(feeds)
        return [_response(request, answer) for request, answer in zip(requests, answers, strict=True)]


def _require_numpy_1() -> None:
    if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
        # NumPy's own DLPack capsules crash it, too.
        raise RuntimeError(f"NumPy {np.__version__}: this server sends empty tensors with NumPy 2, install numpy<2")


def _session(path: Path, config: dict[str, Any]) -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = int(config["parameters"].get(THREADS, {}).get("string_value", 0))
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def _dims(tensor: Any, metadata: dict[str, str]) -> tuple[int, ...]:
    """The shape of an input, -1 for dynamic sizes; the metadata "<input>.dims" overrides the graph."""
    if dims := metadata.get(f"{tensor.name}.dims"):
        return tuple(map(int, dims.split(",")))
    return tuple(size if isinstance(size, int) else -1 for size in tensor.shape)


def _input(declared: dict[str, Any], dims: tuple[int, ...], config: dict[str, Any]) -> Input:
    name, dtype = declared["name"], np.dtype(pb_utils.triton_string_to_numpy(declared["data_type"]))
    return Input(name, dtype, dims, limits(config, name))


def _response(request: Any, answer: Answer) -> Any:
    if isinstance(answer, Exception):
        error = pb_utils.TritonError
        code = error.INVALID_ARG if isinstance(answer, InvalidInputError) else error.INTERNAL
        return pb_utils.InferenceResponse(error=error(str(answer), code))
    wanted = request.requested_output_names()
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, answer[name]) for name in wanted])
