"""A loaded TensorRT plan, in any Python 3.10 or later with TensorRT."""

from pathlib import Path
from typing import Any

from export.profiles import Profile, Shapes, describe, find
from export.tensorrt.api import TensorRtError

# TensorRT's type names to NumPy's.
DTYPES = {"FLOAT": "float32", "HALF": "float16", "INT32": "int32"}


class ShapeError(TensorRtError):
    """No optimisation profile covers the shapes; the message names them."""


class Engine:
    """A loaded plan with an execution context for each optimisation profile.

    Contexts do not share a profile, which TensorRT 8.6 rejects.
    """

    def __init__(self, trt: Any, path: Path, gpu: str, stream: int) -> None:
        """`stream` is a CUDA handle. Raises TensorRtError if the plan is for another TensorRT or GPU."""
        self._runtime = trt.Runtime(trt.Logger(trt.Logger.WARNING))
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            here = f"TensorRT {trt.__version__} on {gpu}"
            raise TensorRtError(f"{path}: {here} cannot load it: it was built by another version or for another GPU")
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        self.dtypes = {name: DTYPES[self._engine.get_tensor_dtype(name).name] for name in names}
        self.dims = {name: list(self._engine.get_tensor_shape(name)) for name in names}
        self.outputs = [n for n in names if self._engine.get_tensor_mode(n) == trt.TensorIOMode.OUTPUT]
        self._inputs = [n for n in names if n not in self.outputs]
        self.profiles = [self._profile(i) for i in range(self._engine.num_optimization_profiles)]
        self._contexts = [self._context(i, stream) for i in range(len(self.profiles))]

    def context(self, shapes: Shapes) -> Any:
        """The execution context whose profile covers these shapes, with them set; raises ShapeError."""
        index = find(self.profiles, shapes)
        if index is None or not all(self._contexts[index].set_input_shape(*given) for given in shapes.items()):
            raise ShapeError(f"the plan does not support {describe(shapes)}")
        return self._contexts[index]

    def output_shapes(self, shapes: Shapes) -> Shapes:
        """Raises ShapeError."""
        context = self.context(shapes)
        return {name: list(context.get_tensor_shape(name)) for name in self.outputs}

    def item_size(self, name: str) -> int:
        return int(self._engine.get_tensor_dtype(name).itemsize)

    def _profile(self, index: int) -> Profile:
        return {n: [list(shape) for shape in self._engine.get_tensor_profile_shape(n, index)] for n in self._inputs}

    def _context(self, profile: int, stream: int) -> Any:
        context = self._engine.create_execution_context()
        if context is None:
            raise TensorRtError(f"no execution context for optimisation profile {profile}: too little memory")
        # The first context already has profile 0.
        if profile and not context.set_optimization_profile_async(profile, stream):
            raise TensorRtError(f"optimisation profile {profile} could not be selected")
        return context
