"""Which kernels a GPU gets, and for what they are compiled."""

from typing import Any

import pytest

from qwen3_tts_engine.talker.kernels.kernel_path import GENERAL, HOPPER, kernel_path
from tests.fakes.cuda_bindings import KERNELS, imported

# Capabilities that NVRTC 13.0 compiles for.
KNOWN = [75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121]


@pytest.mark.parametrize(
    ("capability", "path"),
    [
        ((8, 0), GENERAL), ((8, 6), GENERAL), ((8, 7), GENERAL), ((8, 9), GENERAL), ((9, 0), HOPPER),
        ((10, 0), GENERAL), ((10, 3), GENERAL), ((11, 0), GENERAL), ((12, 0), GENERAL), ((12, 1), GENERAL),
        ((13, 0), GENERAL),
    ],
)  # fmt: skip
def test_each_gpu_has_a_path_and_can_take_the_general_one(capability: tuple[int, int], path: Any) -> None:
    assert kernel_path(capability) == kernel_path(capability, "auto") == path
    assert kernel_path(capability, "general") == GENERAL


@pytest.mark.parametrize(
    ("capability", "target"),
    [(80, "sm_80"), (89, "sm_89"), (90, "sm_90a"), (103, "sm_103"), (121, "sm_121"), (130, "compute_121")],
)
def test_a_gpu_that_the_compiler_does_not_know_gets_ptx(
    monkeypatch: pytest.MonkeyPatch, capability: int, target: str
) -> None:
    with imported(monkeypatch, f"{KERNELS}.cuda_module") as module:
        assert module.compile_target(capability, KNOWN) == target
