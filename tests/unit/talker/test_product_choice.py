"""Which kernel multiplies: by rows, shape and GPU. The CUDA bindings are stand-ins; tests/gpu runs the kernels."""

import queue
from collections.abc import Callable, Iterator

import pytest
import torch

from qwen3_tts_engine.talker.kernels.tile_linear import tile_linears
from tests.fakes.cuda_bindings import KERNELS, TALKER, imported

pytest.importorskip("triton", reason="Triton is not installed")
HOPPER, ADA = (9, 0), (8, 9)
# Layers of the predictor and of the talker of 1.7B: rows of weights, inputs, and the epilogue.
PREDICTOR_LAYER = [(4096, 1024, "NORM"), (1024, 2048, "RESIDUAL"), (6144, 1024, "GATED"), (1024, 3072, "RESIDUAL")]
TALKER_LAYER = [(4096, 2048, "NORM"), (2048, 2048, "RESIDUAL"), (12288, 2048, "GATED"), (2048, 6144, "RESIDUAL")]
# The names of the kernels of a layer's products for so many rows.
Chosen = Callable[..., set[str]]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chosen]:
    with imported(monkeypatch, f"{KERNELS}.cuda_module", f"{KERNELS}.tensor_map", f"{TALKER}.ops.products") as products:

        def choose(
            layer: list[tuple[int, int, str]], rows: int, capability: tuple[int, int], *, batch_invariant: bool = False
        ) -> set[str]:
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
            monkeypatch.setattr(products, "build_tiles", lambda *_, **__: None)
            made = products.Products(torch.device("cuda"), batch_invariant=batch_invariant)
            weights = ((torch.empty(height, inputs, device="meta"), flag) for height, inputs, flag in layer)
            forms = [made.form(rows, weight, **{flag: 1}) for weight, flag in weights]
            return {form.function if form else "cuBLAS" for form in forms}

        yield choose


@pytest.mark.parametrize(
    ("layer", "most_skinny", "most_tiled", "without_gate"),
    [(PREDICTOR_LAYER, 16, 1024, set()), (TALKER_LAYER, 8, 640, {*range(385, 513)})],
    ids=["predictor", "talker"],
)
def test_products_of_a_layer_run_one_kernel_so_that_its_norms_find_their_sums_of_squares(
    chosen: Chosen, layer: list[tuple[int, int, str]], most_skinny: int, most_tiled: int, without_gate: set[int]
) -> None:
    for rows in range(1, 1100):
        expected = "skinny_linear" if rows <= most_skinny else "tile_linear" if rows <= most_tiled else "cuBLAS"
        for product in layer:
            is_gate = product[-1] == "GATED"
            assert chosen([product], rows, HOPPER) == {"cuBLAS" if is_gate and rows in without_gate else expected}


def test_the_tiles_of_a_product_are_compiled_once_ahead_of_their_use(monkeypatch: pytest.MonkeyPatch) -> None:
    built: queue.Queue[tuple[str, int]] = queue.Queue()
    with imported(monkeypatch, f"{KERNELS}.cuda_module", f"{KERNELS}.tensor_map", f"{TALKER}.ops.products") as products:
        monkeypatch.setattr(products, "architecture", lambda: "sm_90a")
        monkeypatch.setattr(products, "compiled", lambda source, macros, _: built.put((source, macros["ROWS"])))
        for _ in range(2):
            products.build_tiles(1024, 3072, RESIDUAL=1)
        found = [built.get(timeout=60) for _ in tile_linears(1024, 3072, RESIDUAL=1)]
    assert {source for source, _ in found} == {"tile_linear.cu"}
    assert {rows for _, rows in found} == {32, 64, 96, 128}
    assert built.empty()


def test_other_gpus_have_no_tiles(chosen: Chosen) -> None:
    assert chosen(TALKER_LAYER, 16, ADA) == {"skinny_linear"}
    assert chosen(PREDICTOR_LAYER, 64, ADA) == {"skinny_linear", "cuBLAS"}
    assert chosen(TALKER_LAYER, 65, ADA) == {"cuBLAS"}


@pytest.mark.parametrize("rows", [1, 16, 64, 1024])
def test_batch_invariance_means_one_kernel_for_any_number_of_rows(chosen: Chosen, rows: int) -> None:
    assert chosen(TALKER_LAYER, rows, HOPPER, batch_invariant=True) == {"skinny_linear"}
