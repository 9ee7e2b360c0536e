"""Start on a machine that cannot compile the kernels, and with kernels that are wrong."""

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.talker.graph_runner import GraphTalkerRunner
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.ops.torch_ops import TorchOps
from qwen3_tts_engine.talker.proof import TalkerProofError
from tests.gpu.conftest import DEVICE
from tests.gpu.test_runner import config_of, newcomer, speak


@pytest.fixture
def _forgotten_kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Kernels that other tests compiled are not known, nor are those of this test afterwards."""
    # These modules require CUDA.
    from qwen3_tts_engine.talker.ops import kernel_ops, products

    def forget() -> None:
        for cached in (kernel_ops._kernel, products._kernel):
            cached.cache_clear()

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    forget()
    yield
    forget()


@pytest.fixture
def _no_compiler(_forgotten_kernels: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from qwen3_tts_engine.talker.kernels import cuda_module

    def fail(name: str, *_: object, **__: object) -> bytes:
        raise cuda_module.KernelError(f"{name} does not compile: injected")

    monkeypatch.setattr(cuda_module, "_compile", fail)


@pytest.mark.usefixtures("_no_compiler")
def test_kernels_auto_falls_back_to_pytorch_and_logs_the_error(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    runner = load_runner(checkpoint, config_of(checkpoint, kernels="auto"), DEVICE)
    assert not isinstance(runner, GraphTalkerRunner)
    assert isinstance(runner._ops, TorchOps)
    assert "PyTorch operations, which are slower, replace the" in caplog.text
    assert "does not compile: injected" in caplog.text
    codes = speak(runner, [newcomer(checkpoint, slot) for slot in range(3)])
    assert len(np.unique(codes)) > 10


@pytest.mark.usefixtures("_no_compiler")
@pytest.mark.parametrize(
    "settings", [{"kernels": "required"}, {"kernels": "eager"}, {"kernels": "auto", "batch_invariant": True}]
)
def test_required_kernels_or_batch_invariance_raise_the_compile_error(
    checkpoint: Checkpoint, settings: dict[str, object]
) -> None:
    with pytest.raises(RuntimeError, match="does not compile: injected"):
        load_runner(checkpoint, config_of(checkpoint, **settings), DEVICE)
    torch.cuda.empty_cache()


# A norm that is too large, and rows that draw from their neighbour's logits, by source.
DAMAGE = {
    "skinny_linear.cu": (b"value *= inverse;", b"value *= 1.1f * inverse;"),
    "draw.cu": (b"logits + (size_t)row * VOCABULARY", b"logits + (size_t)(row / 2) * VOCABULARY"),
}


@pytest.fixture(params=DAMAGE)
def _damaged_kernel(_forgotten_kernels: None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    from qwen3_tts_engine.talker.kernels import cuda_module

    compile_right, (right, wrong) = cuda_module._compile, DAMAGE[request.param]

    def damaged(name: str, source: bytes, *rest: Any, **options: Any) -> bytes:
        if name == request.param:
            assert right in source
            source = source.replace(right, wrong)
        return compile_right(name, source, *rest, **options)

    monkeypatch.setattr(cuda_module, "_compile", damaged)


@pytest.mark.usefixtures("_damaged_kernel")
def test_a_damaged_kernel_is_replaced_or_fails_the_load(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(TalkerProofError, match="the talker differs from its golden cases"):
        load_runner(checkpoint, config_of(checkpoint), DEVICE)
    torch.cuda.empty_cache()
    runner = load_runner(checkpoint, config_of(checkpoint, kernels="auto"), DEVICE)
    assert isinstance(runner._ops, TorchOps)
    assert f"kernels on {torch.cuda.get_device_name(DEVICE)}: the talker differs from its golden cases" in caplog.text


@pytest.mark.parametrize("kernels", ["required", "eager", "off"])
def test_the_talker_is_proven(checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture, kernels: str) -> None:
    with caplog.at_level(logging.INFO):
        load_runner(checkpoint, config_of(checkpoint, kernels=kernels, talker_proof_seconds=60), DEVICE)
    assert "the talker agrees with its golden cases: batches 1, 2, 4, 8, 12, 16" in caplog.text
