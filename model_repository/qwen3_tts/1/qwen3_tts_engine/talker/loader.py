"""Loads a checkpoint into a runner."""

import logging
from collections.abc import Iterator, Mapping
from typing import TypeVar

import torch

from qwen3_tts_engine.checkpoint.alignment import Alignment
from qwen3_tts_engine.checkpoint.checkpoint import WEIGHTS, Checkpoint, load_tensors
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.tensor_shapes import talker_shapes
from qwen3_tts_engine.config import ConfigError, EngineConfig, max_positions
from qwen3_tts_engine.interfaces import RunnerLimits
from qwen3_tts_engine.talker import cublas
from qwen3_tts_engine.talker.code_predictor import CodePredictor
from qwen3_tts_engine.talker.golden import Cases, Rounds, TalkerGolden
from qwen3_tts_engine.talker.kernels.kernel_path import kernel_path
from qwen3_tts_engine.talker.memory_plan import cache_pages, page_bytes
from qwen3_tts_engine.talker.ops.interface import Ops
from qwen3_tts_engine.talker.ops.torch_ops import TorchOps
from qwen3_tts_engine.talker.proof import TalkerProof
from qwen3_tts_engine.talker.runner import TalkerRunner
from qwen3_tts_engine.talker.talker import Talker
from qwen3_tts_engine.talker.weights import is_of_layer

log = logging.getLogger(__name__)
RunnerT = TypeVar("RunnerT", bound=TalkerRunner)
# Holds the longest stream of a released checkpoint, 1.4 GiB in float32.
CPU_CACHE_BYTES = 2 << 30


def load_runner(
    checkpoint: Checkpoint, config: EngineConfig, device: torch.device, alignment: Alignment | None = None
) -> TalkerRunner:
    """Load the weights, build the tick's graphs and prove them; `alignment` are the checkpoint's heads for word times.

    Raises CheckpointError for a missing tensor or a wrong shape, ConfigError for incompatible settings, and what a
    graph's build or the proof raises where PyTorch operations may not take its place.
    """
    is_gpu = device.type == "cuda"
    _check_weights(config, device)
    if is_gpu and config.batch_invariant and config.kernels == "off":
        raise ConfigError("batch_invariant: requires the kernels, so kernels must not be off")
    if config.kernels != "off":
        try:
            make = _kernel_runner if is_gpu else _onnx_runner
            return _proven(make(checkpoint, config, device, alignment), checkpoint, config)
        except (CheckpointError, ConfigError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            if config.kernels != "auto" or (is_gpu and config.batch_invariant) or config.cpu_weights == "int8":
                raise
            replaced = _kernels_of(device, config) if is_gpu else "ONNX Runtime's graphs on the CPU"
            log.warning("PyTorch operations, which are slower, replace %s: %s", replaced, error)
    if is_gpu and not cublas.is_whole(device):
        raise ConfigError(f"kernels: PyTorch operations require cuBLAS, but {cublas.PARTIAL}: give it the whole GPU")
    # Outside of the handler, whose error keeps the failed runner's memory alive.
    runner = _make_runner(TalkerRunner, TorchOps(), checkpoint, config, device, alignment)
    # On a CPU these operations make the golden cases.
    return _proven(runner, checkpoint, config) if is_gpu else runner


def _check_weights(config: EngineConfig, device: torch.device) -> None:
    if config.cpu_weights == "float32":
        return
    if device.type == "cuda":
        raise ConfigError(f"cpu_weights: {config.cpu_weights} is for a CPU, on {device} weights are bfloat16: unset it")
    if config.kernels == "off":
        raise ConfigError(f"cpu_weights: {config.cpu_weights} requires ONNX Runtime, so kernels must not be off")


def _kernels_of(device: torch.device, config: EngineConfig) -> str:
    path = kernel_path(torch.cuda.get_device_capability(device), config.kernel_path).name
    return f"the {path} kernels on {torch.cuda.get_device_name(device)}"


def _proven(runner: RunnerT, checkpoint: Checkpoint, config: EngineConfig) -> RunnerT:
    """The runner, which agrees with the golden cases. Raises TalkerProofError."""
    if config.talker_proof_seconds:
        rounds: Rounds = "int8" if config.cpu_weights == "int8" else "bfloat16"
        golden, cases = TalkerGolden.of(checkpoint, rounds), Cases.of(checkpoint.config)
        TalkerProof(runner, golden, cases).run(config.talker_proof_seconds)
    return runner


def _onnx_runner(
    checkpoint: Checkpoint, config: EngineConfig, device: torch.device, alignment: Alignment | None
) -> TalkerRunner:
    # A server on a GPU needs neither ONNX nor ONNX Runtime.
    from qwen3_tts_engine.talker.onnx_runner import OnnxTalkerRunner

    runner = _make_runner(OnnxTalkerRunner, TorchOps(), checkpoint, config, device, alignment)
    runner.build(config.cpu_weights)
    return runner


def _kernel_runner(
    checkpoint: Checkpoint, config: EngineConfig, device: torch.device, alignment: Alignment | None
) -> TalkerRunner:
    # Triton and NVRTC are installed only for CUDA.
    from qwen3_tts_engine.talker.graph_runner import GraphTalkerRunner
    from qwen3_tts_engine.talker.ops.kernel_ops import KernelOps

    path = kernel_path(torch.cuda.get_device_capability(device), config.kernel_path)
    ops = KernelOps(device, path, batch_invariant=config.batch_invariant)
    if config.kernels == "eager":
        eager = _make_runner(TalkerRunner, ops, checkpoint, config, device, alignment)
        eager.build_kernels()
        return eager
    runner = _make_runner(GraphTalkerRunner, ops, checkpoint, config, device, alignment)
    runner.capture(lambda done, total: log.info("captured %d of %d CUDA graphs", done, total))
    return runner


def _make_runner(
    kind: type[RunnerT],
    ops: Ops,
    checkpoint: Checkpoint,
    config: EngineConfig,
    device: torch.device,
    alignment: Alignment | None,
) -> RunnerT:
    limits = plan_limits(config, checkpoint, device)
    stored = load_tensors(checkpoint.path(WEIGHTS), talker_shapes(checkpoint.config))
    # The graphs widen a layer's weights one at a time.
    tensors = MovedTensors(stored, device, keep_layers=config.cpu_weights == "int8")
    talker = Talker(checkpoint.config.talker_config, tensors, ops)
    predictor = CodePredictor(talker, tensors, ops)
    torch.cuda.empty_cache()  # left by the originals of stacked and projected weights
    return kind(talker, predictor, limits, checkpoint.config.tts_pad_token_id, ops, alignment)


class MovedTensors(Mapping[str, torch.Tensor]):
    """Tensors on the host; each is moved when it is read, so that no original stays on the device beside its copy.

    `keep_layers`: weights of layers keep their stored dtype.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], device: torch.device, *, keep_layers: bool = False) -> None:
        self._tensors, self._device, self._keep_layers = tensors, device, keep_layers

    def __getitem__(self, name: str) -> torch.Tensor:
        tensor = self._tensors[name]
        is_kept = self._keep_layers and is_of_layer(name, tensor)
        return tensor.to(self._device, tensor.dtype if is_kept else weight_dtype(self._device))

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def weight_dtype(device: torch.device) -> torch.dtype:
    return torch.bfloat16 if device.type == "cuda" else torch.float32


def plan_limits(config: EngineConfig, checkpoint: Checkpoint, device: torch.device) -> RunnerLimits:
    """Size the key/value cache. Raises ConfigError when it cannot hold one stream of maximum length."""
    page = page_bytes(checkpoint.config.talker_config, config.page_size, weight_dtype(device).itemsize)
    is_base = checkpoint.config.tts_model_type == "base"
    longest = max_positions(checkpoint.config, config)
    trailing = 2 * config.max_text_tokens if is_base else config.max_text_tokens
    default = page * cache_pages(config, longest, config.max_streams)
    if device.type == "cpu":
        default = min(default, CPU_CACHE_BYTES)
    size = int(config.kv_cache_gib * (1 << 30)) or default
    if size // page * config.page_size < longest:
        raise ConfigError(
            f"kv_cache_gib: {size / (1 << 30):.2f} GiB hold {size // page * config.page_size} positions, "
            f"one stream may require {longest}: raise it, or lower max_frames_limit or max_text_tokens"
        )
    return RunnerLimits(config.max_streams, size // page, config.page_size, longest, trailing)
