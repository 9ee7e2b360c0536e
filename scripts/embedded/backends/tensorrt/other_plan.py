"""A plan that TensorRT runs in another Python (export.tensorrt.run), on device memory that this process maps."""

from pathlib import Path

import torch
from merged_runs import InvalidInputError  # type: ignore[import-not-found]
from plan import Plan, Tensors  # type: ignore[import-not-found]

from export.profiles import describe
from export.tensorrt.process import TensorRtSettings
from export.tensorrt.shared_plan import SharedPlan


class OtherPlan(Plan):  # type: ignore[misc]
    def __init__(self, path: Path, device: torch.device, python: Path) -> None:
        """Raises PlanError if the plan is for another TensorRT or GPU."""
        super().__init__(device)
        self._shared = SharedPlan(TensorRtSettings(python), path, device)
        self.dtypes = self._shared.dtypes
        self.dims = {name: tuple(dims) for name, dims in self._shared.process.dims.items()}

    def _launch(self, inputs: Tensors) -> Tensors:
        shapes = {name: list(tensor.shape) for name, tensor in inputs.items()}
        if not self._shared.takes(shapes):
            raise InvalidInputError(f"the plan does not support {describe(shapes)}")
        for name, view in self._shared.views(shapes).items():
            view.copy_(inputs[name])
        # The other process cannot wait on this one's stream, which copies the inputs.
        self._stream.synchronize()
        return {name: view.clone() for name, view in self._shared.views(self._shared.run(shapes)).items()}
