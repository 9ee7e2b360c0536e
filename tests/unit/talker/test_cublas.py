"""cuBLAS is trusted only where it writes every output."""

from typing import Any

import pytest
import torch

from qwen3_tts_engine.talker import cublas

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    cublas.is_whole.cache_clear()
    monkeypatch.setattr(cublas, "PRODUCTS", ((3, 64, 32), (5, 16, 32)))


def test_right_products_are_trusted() -> None:
    assert cublas.is_whole(CPU)


@pytest.mark.parametrize("damage", ["unwritten", "stale"])
def test_a_product_with_a_wrong_output_is_not(monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    mm = torch.mm

    def partial(x: torch.Tensor, weight: torch.Tensor, *, out: torch.Tensor) -> Any:
        last = out[-1, -1].clone()
        mm(x, weight, out=out)
        out[-1, -1] = last if damage == "unwritten" else 0.5 + out[-1, -1]

    monkeypatch.setattr(torch, "mm", partial)
    assert not cublas.is_whole(CPU)
