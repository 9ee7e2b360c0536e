"""The codec's launches with other tiles, in Triton's interpreter."""

from typing import Any

import pytest
import torch

from tests.fakes.codec_layers import CASES, Inputs, small_config

pytest.importorskip("triton", reason="Triton is not installed")
CPU = torch.device("cpu")
# Products, and units whose sum replaces nothing that they read.
NAMES = ("normed", "gated", "gelu", "dilated", "transposed", "residual", "last unit 192")


def recorded(name: str) -> list[Any]:
    if torch.cuda.is_available():
        pytest.skip("kernels are compiled where there is a GPU")
    from scripts.lab.codec_tiles import RecordingOps

    ops = RecordingOps(small_config(), CPU)
    ops.launches = []
    CASES[name](ops, Inputs(CPU, torch.float32), small_config())
    return ops.launches


def results(launch: Any) -> list[torch.Tensor]:
    """`out` and `active`, which a launch writes."""
    places = (10, 11) if launch.is_unit else (6, 7)
    return [launch.arguments[place] for place in places if launch.arguments[place] is not None]


@pytest.mark.parametrize("name", NAMES)
def test_every_tile_computes_the_same(name: str) -> None:
    from scripts.lab.codec_tiles import candidates

    [launch] = recorded(name)
    expected = [tensor.clone() for tensor in results(launch)]
    served, *others = candidates(launch)
    assert served == launch.tile
    # Warps, stages and registers make no difference here.
    for tile in {(tile.rows, tile.columns, tile.depth): tile for tile in others}.values():
        for tensor in results(launch):
            tensor.fill_(torch.nan)
        launch.with_tile(tile).run()
        torch.testing.assert_close(results(launch), expected, rtol=1e-4, atol=1e-5)


def test_a_unit_of_many_channels_is_two_products() -> None:
    conv, pointwise = recorded("unit 128")
    assert (conv.rows, conv.outputs, conv.width) == (40, 128, 7 * 128)
    assert conv.name == "40x128 of 896 active"
    assert pointwise.name == "40x128 of 128 residual out active"
    assert conv.flops == 2 * 40 * 128 * 896


def test_operations_count_both_matrices() -> None:
    [gated], [unit] = recorded("gated"), recorded("last unit 192")
    assert gated.flops == 2 * 6 * 2 * 64 * 64
    assert unit.flops == 2 * 40 * 192 * (7 + 1) * 192


def test_bytes_count_what_each_program_reads() -> None:
    conv, pointwise = recorded("unit 128")
    tile = conv.tile._replace(rows=32, columns=64)
    # 40 rows and 128 columns are two by two programs.
    assert conv.with_tile(tile).tile_bytes == 4 * 2 * (32 + 64) * 7 * 128
    assert pointwise.with_tile(tile).tile_bytes == 4 * 2 * (32 + 64) * 128


def test_equal_launches_are_searched_once() -> None:
    from scripts.lab.codec_tiles import distinct

    conv, pointwise = recorded("unit 128")
    assert distinct([conv, pointwise, conv, conv]) == [(conv, 3), (pointwise, 1)]
