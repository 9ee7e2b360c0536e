"""What a tensor map is encoded from, with a stand-in for the driver; tests/gpu runs kernels that read through them."""

from collections.abc import Iterator
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch

from tests.fakes.cuda_bindings import KERNELS, imported


@pytest.fixture
def tensor_map(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    with imported(monkeypatch, f"{KERNELS}.cuda_module", f"{KERNELS}.tensor_map") as module:
        encode = MagicMock(return_value=0)
        monkeypatch.setattr(module, "_encode", lambda: encode)
        yield module


def arguments(module: Any) -> list[Any]:
    """Dimensions, address, sizes, strides and tile of the last map."""
    _, _, count, address, sizes, strides, tile, *_ = module._encode().call_args.args
    return [count, address.value, list(sizes), list(strides), list(tile)]


def test_a_matrix_has_its_stride_in_bytes(tensor_map: Any) -> None:
    matrix = torch.empty(20, 2, 128, dtype=torch.bfloat16)[:, 1]
    tensor_map.tensor_map(matrix, 64, 32)
    assert arguments(tensor_map) == [2, matrix.data_ptr(), [128, 20], [512], [64, 32]]


def test_a_gated_tile_takes_turns_with_eight_gates_and_their_ups(tensor_map: Any) -> None:
    weight = torch.empty(2 * 96, 128, dtype=torch.bfloat16)
    tensor_map.gated_map(weight, 64, 64)
    gates, eight = 96 * 128 * 2, 8 * 128 * 2
    assert arguments(tensor_map) == [4, weight.data_ptr(), [128, 8, 2, 12], [256, gates, eight], [64, 8, 2, 4]]


def test_a_map_is_encoded_once(tensor_map: Any) -> None:
    weight, other = (torch.empty(64, 128, dtype=torch.bfloat16) for _ in range(2))
    first, again = (tensor_map.tensor_map(weight, 64, 64) for _ in range(2))
    assert first is again
    assert tensor_map._encode().call_count == 1
    tensor_map.tensor_map(weight, 64, 32)
    tensor_map.tensor_map(other, 64, 64)
    assert tensor_map._encode().call_count == 3


def test_an_error_names_sizes_and_tile_and_is_not_kept(tensor_map: Any) -> None:
    weight = torch.empty(64, 128, dtype=torch.bfloat16)
    tensor_map._encode().return_value = 1
    for _ in range(2):
        with pytest.raises(tensor_map.KernelError, match=r"a tensor map of \(128, 64\), tiles of \(64, 64\): error 1"):
            tensor_map.tensor_map(weight, 64, 64)
    tensor_map._encode().return_value = 0
    tensor_map.tensor_map(weight, 64, 64)
