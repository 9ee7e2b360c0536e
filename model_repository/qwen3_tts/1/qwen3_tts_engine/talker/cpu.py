"""What a CPU server may take: cores and memory of the machine, or of its cgroup (version 2)."""

import logging
import math
import os
from math import prod
from pathlib import Path

import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.tensor_shapes import talker_shapes
from qwen3_tts_engine.config import ConfigError, CpuWeights
from qwen3_tts_engine.talker.memory_plan import gib

log = logging.getLogger(__name__)

CGROUP, MEMORY = Path("/sys/fs/cgroup"), Path("/proc/meminfo")
FLOAT_BYTES = 4
# Bytes of a product's weight: FP32 as loaded and as ONNX Runtime packs it; or at most bfloat16 as loaded, int8, and
# int8 as packed.
PRODUCT_BYTES = {"float32": 2 * FLOAT_BYTES, "int8": 4}
# Bound on PyTorch, ONNX Runtime and the interpreter: a talker of the demo voice has 0.5 GB resident.
PROCESS_BYTES = 600 << 20
VECTORS = ("AVX2", "AVX512")
# Most threads of code2wav (code2wav_step/onnx_runner.py), which takes at most half of the cores.
CODEC_THREADS = 4


def cores() -> int:
    """Cores that this process may use, at least 1."""
    allowed = len(os.sched_getaffinity(0))
    quota, period = [*_words("cpu.max"), "max", "1"][:2]
    return allowed if quota == "max" else max(1, min(allowed, math.ceil(int(quota) / int(period))))


def talker_threads(cores: int) -> int:
    """Threads of the talker: more would compete with the codec's for cores."""
    return max(1, cores - min(CODEC_THREADS, cores // 2))


def free_bytes() -> int:
    """Memory that this process may still take."""
    [available] = [line.split()[1] for line in MEMORY.read_text().splitlines() if line.startswith("MemAvailable:")]
    free = int(available) << 10
    limit, used = [*_words("memory.max"), "max"][0], [*_words("memory.current"), "0"][0]
    return free if limit == "max" else min(free, int(limit) - int(used))


def needed_bytes(checkpoint: Checkpoint, weights: CpuWeights = "float32") -> int:
    """Memory of a talker: its weights in FP32, and those of layers and heads as PRODUCT_BYTES has them."""
    sizes = {name: prod(shape) for name, shape in talker_shapes(checkpoint.config).items()}
    products = sum(size for name, size in sizes.items() if ".layers." in name or "head" in name)
    others = sum(sizes.values()) - products
    return PROCESS_BYTES + FLOAT_BYTES * others + PRODUCT_BYTES[weights] * products


def check(checkpoint: Checkpoint, weights: CpuWeights = "float32") -> None:
    """Says what makes this CPU slow. Raises ConfigError where the talker would not fit."""
    needed, free = needed_bytes(checkpoint, weights), free_bytes()
    if needed > free:
        raise ConfigError(
            f"device: the talker takes {gib(needed)} GiB of memory on a CPU, {gib(free)} GiB are free: give the server "
            "more, or serve a smaller checkpoint"
        )
    if cores() < 2:
        log.warning("one CPU core: the talker waits for the codec, and the codec for the talker")
    if (found := torch.backends.cpu.get_cpu_capability()) not in VECTORS:
        log.warning("the CPU has no AVX2 (%s), for which its products are slow", found)


def _words(name: str) -> list[str]:
    """Words of a cgroup's file; empty without one."""
    try:
        return (CGROUP / name).read_text().split()
    except OSError:
        return []
