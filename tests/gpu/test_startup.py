"""Start on a machine that cannot compile the kernels."""

from pathlib import Path

import numpy as np
import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.talker.graph_runner import GraphTalkerRunner
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.ops.torch_ops import TorchOps
from tests.gpu.conftest import DEVICE
from tests.gpu.test_runner import config_of, newcomer, speak


@pytest.fixture
def _no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # These modules require CUDA.
    from qwen3_tts_engine.talker.kernels import cuda_module
    from qwen3_tts_engine.talker.ops import kernel_ops, products

    def fail(name: str, *_: object, **__: object) -> bytes:
        raise cuda_module.KernelError(f"{name} does not compile: injected")

    monkeypatch.setattr(cuda_module, "_compile", fail)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    # Forget kernels that other tests compiled.
    for cached in (kernel_ops._kernel, products._kernel):
        cached.cache_clear()


@pytest.mark.usefixtures("_no_compiler")
def test_kernels_auto_falls_back_to_pytorch_and_logs_the_error(
    checkpoint: Checkpoint, caplog: pytest.LogCaptureFixture
) -> None:
    runner = load_runner(checkpoint, config_of(checkpoint, kernels="auto"), DEVICE)
    assert not isinstance(runner, GraphTalkerRunner)
    assert isinstance(runner._ops, TorchOps)
    assert "the CUDA kernels could not be built" in caplog.text
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
