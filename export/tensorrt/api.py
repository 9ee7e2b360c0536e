"""Hides the differences of TensorRT 8.6, 10, 11 and TensorRT for RTX; requires nothing but one of them."""

import ctypes
import importlib
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

# The package of NGC containers and NVIDIA's index, and TensorRT for RTX under its names on PyPI.
MODULES = ("tensorrt", "tensorrt_rtx", "tensorrt_rtx_bindings")
# Environment variable: plugin library to load (export/plugin).
PLUGIN_LIBRARY = "QWEN3_TTS_TENSORRT_PLUGIN"
# Layers that 8.6 would compute in FP16 although the graph has FP32.
PINNED_LAYERS = ("ELEMENTWISE", "UNARY", "REDUCE", "NORMALIZATION", "SOFTMAX", "ACTIVATION")
Report = Callable[[str], None]


class TensorRtError(RuntimeError):
    """TensorRT is missing, or rejects a graph or a plan; the message has its error."""


def import_tensorrt() -> Any:
    """The first TensorRT installed, with plugins loaded; raises TensorRtError without one."""
    for name in MODULES:
        try:
            trt = importlib.import_module(name)
        except ImportError as error:
            if error.name != name:
                raise TensorRtError(f"{name} is installed but does not load: {error}") from None
        else:
            load_plugins()
            return trt
    raise TensorRtError(f"no TensorRT: install one of {', '.join(MODULES)}")


def load_plugins() -> None:
    """Loads the library named by PLUGIN_LIBRARY, which registers its plugins; raises TensorRtError."""
    if library := os.environ.get(PLUGIN_LIBRARY):
        try:
            ctypes.CDLL(library)
        except OSError as error:
            raise TensorRtError(f"{PLUGIN_LIBRARY}: {error}") from None


def take_standard_output() -> BinaryIO:
    """Reserves standard output for replies and redirects what TensorRT prints there to standard error."""
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return output


def is_ahead_of_time(trt: Any) -> bool:
    """Whether plans are built without a GPU, and tuned on the machine that loads them."""
    return bool(trt.__name__.startswith("tensorrt_rtx"))


def create_network(trt: Any, builder: Any) -> Any:
    """A strongly typed network, which computes every tensor in its type in the graph; 8.6 has none.

    8.6 requires EXPLICIT_BATCH, 10 ignores it and 11 dropped it. 10 requires STRONGLY_TYPED, 11 ignores it.
    """
    known = trt.NetworkDefinitionCreationFlag
    flags = [getattr(known, name) for name in ("EXPLICIT_BATCH", "STRONGLY_TYPED") if hasattr(known, name)]
    return builder.create_network(sum(1 << int(flag) for flag in flags))


def is_strongly_typed(trt: Any) -> bool:
    """Whether create_network makes a strongly typed network: on request in 10, always without an FP16 flag (11)."""
    return hasattr(trt.NetworkDefinitionCreationFlag, "STRONGLY_TYPED") or not hasattr(trt.BuilderFlag, "FP16")


def configure(trt: Any, builder: Any, network: Any, level: int, report: Report) -> Any:
    """Builder settings for one optimisation level, 0 (quick to build) to 5."""
    config = builder.create_builder_config()
    # FP32 in a graph means full FP32.
    config.clear_flag(trt.BuilderFlag.TF32)
    if not is_ahead_of_time(trt):
        config.builder_optimization_level = level
    if not is_strongly_typed(trt):
        _keep_types(trt, network, config)
    if hasattr(trt, "IProgressMonitor"):
        config.progress_monitor = progress_monitor(trt, report)
    return config


def use_timing_cache(trt: Any, config: Any, path: Path) -> None:
    """Reuses the timings of earlier builds, if any."""
    if not is_ahead_of_time(trt):
        known = path.read_bytes() if path.is_file() else b""
        config.set_timing_cache(config.create_timing_cache(known), ignore_mismatch=False)


def save_timing_cache(trt: Any, config: Any, path: Path) -> None:
    if not is_ahead_of_time(trt):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Write and rename, since another export may be reading.
        part = path.with_suffix(f".{uuid.uuid4().hex}")
        part.write_bytes(memoryview(config.get_timing_cache().serialize()))
        part.replace(path)


def progress_monitor(trt: Any, report: Report) -> Any:
    """Reports each phase name when it first starts; never cancels a build."""
    seen: set[str] = set()

    class Monitor(trt.IProgressMonitor):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.IProgressMonitor.__init__(self)

        def phase_start(self, phase_name: str, parent_phase: Any, num_steps: int) -> None:
            if phase_name not in seen:
                seen.add(phase_name)
                report(f"{phase_name} ({num_steps} steps)")

        def step_complete(self, phase_name: str, step: int) -> bool:
            return True

        def phase_finish(self, phase_name: str) -> None:
            pass

    return Monitor()


def _keep_types(trt: Any, network: Any, config: Any) -> None:
    """The nearest to a strongly typed network in 8.6."""
    # The others call cuBLAS and cuDNN, which 8.6 does not ship.
    sources = (trt.TacticSource.EDGE_MASK_CONVOLUTIONS, trt.TacticSource.JIT_CONVOLUTIONS)
    config.set_tactic_sources(sum(1 << int(source) for source in sources))
    if all(network.get_input(i).dtype != trt.float16 for i in range(network.num_inputs)):
        return  # computes in FP32 throughout
    config.set_flag(trt.BuilderFlag.FP16)
    config.set_flag(trt.BuilderFlag.PREFER_PRECISION_CONSTRAINTS)
    pinned = {getattr(trt.LayerType, name) for name in PINNED_LAYERS}
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        if layer.type in pinned and layer.get_output(0).dtype == trt.float32:
            layer.precision = trt.float32
            layer.set_output_type(0, trt.float32)
