"""The kernels of the talker's graphs for the released sizes, recorded on the meta device, where nothing is computed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from qwen3_tts_engine.checkpoint.alignment import LAYOUTS, Alignment, AlignmentHeads
from qwen3_tts_engine.checkpoint.configs import ModelConfig
from qwen3_tts_engine.checkpoint.tensor_shapes import talker_shapes
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.interfaces import RunnerLimits
from qwen3_tts_engine.talker import cublas, graph_runner, slot_state
from qwen3_tts_engine.talker.code_predictor import CodePredictor
from qwen3_tts_engine.talker.graph_runner import GraphTalkerRunner
from qwen3_tts_engine.talker.kernels import cuda_module
from qwen3_tts_engine.talker.kernels.kernel_path import GENERAL, KernelPath, kernel_path
from qwen3_tts_engine.talker.ops import kernel_ops, products
from qwen3_tts_engine.talker.talker import Talker, code_offsets
from scripts.synthetic.configs import Size, model_config
from tests.fakes.every_gpu.gpus import Gpu
from tests.fakes.every_gpu.kernels import CudaKernel, Kernel, recorded_triton
from tests.fakes.one_stream import OneStream

META = torch.device("meta")
# The default, since attention.cu is compiled for a page size.
PAGE_SIZE = EngineConfig.model_fields["page_size"].default
SIZES: tuple[Size, ...] = ("0.6b", "1.7b")
NO_IDS = {f"{name}_token_id": 0 for name in ("im_start", "im_end", "assistant", "tts_pad", "tts_bos", "tts_eos")}
LIMITS = RunnerLimits(1024, 4096, PAGE_SIZE, max_positions=4096, max_trailing=1024)
# Rows of prompts beside each number of frames: the fewest and the most of those in use.
JOINT_PROMPTS = [64, 512]
# Heads of both layouts in the one layer of _config; as many as are chosen at most.
ALIGNMENT = Alignment(
    talker_digest="",
    layouts={
        layout: AlignmentHeads(heads=[(0, head) for head in range(6)], advance=[0.7, 0.2, 0.07, 0.03], scores={})
        for layout in LAYOUTS
    },
)
Record = Callable[[Kernel], None]


class RecordingRunner(GraphTalkerRunner):
    """Runs once what it would capture."""

    def _capture(self, padding: Sequence[np.ndarray], run: Callable[..., Any]) -> Any:
        run(*(torch.from_numpy(rows).to(META) for rows in padding))

    def _make_memory(self) -> Any:
        pass


def kernels(gpu: Gpu) -> list[Kernel]:
    """Includes those of the general path where the GPU has another, and of the batch-invariant mode."""
    found: list[Kernel] = []
    for size in SIZES:
        for options in _variants(kernel_path((gpu.major, gpu.minor))):
            _record(gpu, size, found.append, **options)
    return found


def _variants(path: KernelPath) -> Iterator[dict[str, Any]]:
    yield {"path": path, "has_cublas": True}
    yield {"path": path, "has_cublas": True, "batch_invariant": True}
    if path != GENERAL:
        # The setting kernel_path, and a part of the GPU.
        yield {"path": GENERAL, "has_cublas": True}
        yield {"path": path, "has_cublas": False}


def _record(
    gpu: Gpu, size: Size, record: Record, *, path: KernelPath, has_cublas: bool, batch_invariant: bool = False
) -> None:
    config = ModelConfig.model_validate(_config(size))
    weights = {
        name: torch.empty(shape, dtype=torch.bfloat16, device=META) for name, shape in talker_shapes(config).items()
    }
    with _recorded(gpu, record, has_cublas=has_cublas), torch.inference_mode():
        ops = kernel_ops.KernelOps(META, path, batch_invariant=batch_invariant)
        talker = Talker(config.talker_config, weights, ops)
        # The predictor reads the offsets' values.
        talker.code_offsets = code_offsets(config.talker_config)
        predictor = CodePredictor(talker, weights, ops)
        talker.code_offsets = talker.code_offsets.to(META)
        RecordingRunner(talker, predictor, LIMITS, 0, ops, ALIGNMENT).capture()


def _config(size: Size) -> dict[str, Any]:
    """A configuration with one layer in each stack, since all have equal shapes."""
    config = model_config(size, "base", NO_IDS)
    talker = config["talker_config"]
    talker["num_hidden_layers"] = talker["code_predictor_config"]["num_hidden_layers"] = 1
    return config


def _recorded(gpu: Gpu, record: Record, *, has_cublas: bool) -> ExitStack:
    """Records launches on this GPU instead of running them."""

    class Recorder:
        """Stands in for cuda_module.CudaKernel."""

        def __init__(
            self,
            source: str,
            function: str,
            macros: dict[str, int],
            threads: int,
            shared_bytes: int = 0,
            *_: object,
            **__: object,
        ) -> None:
            path = cuda_module.FOLDER / source
            self._kernel = CudaKernel(path, function, macros, threads, shared_bytes)

        def __call__(self, *_: object) -> None:
            record(self._kernel)

    kernel_ops._kernel.cache_clear()
    products._kernel.cache_clear()
    patches = ExitStack()
    patches.enter_context(gpu.current())
    patches.enter_context(recorded_triton(record))
    for module, name, replacement in (
        (kernel_ops, "CudaKernel", Recorder),
        (kernel_ops, "SideStream", OneStream),
        (products, "CudaKernel", Recorder),
        (products, "tensor_map", lambda *_: None),
        (products, "gated_map", lambda *_: None),
        (products, "build_tiles", lambda *_, **__: None),
        (cublas, "is_whole", lambda device: has_cublas),
        (graph_runner, "joint_prompts", lambda frames: JOINT_PROMPTS),
        (slot_state, "to_device", lambda array, device: torch.from_numpy(array).to(device)),
    ):
        patches.enter_context(patch.object(module, name, replacement))
    return patches
