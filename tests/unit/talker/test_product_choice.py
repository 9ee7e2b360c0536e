"""Which kernel multiplies: by rows, shape and GPU. The CUDA bindings are stand-ins; tests/gpu runs the kernels."""

import queue
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from qwen3_tts_engine.talker.kernels.kernel_path import GENERAL, HOPPER, KernelPath
from qwen3_tts_engine.talker.kernels.tile_linear import tile_linears
from tests.fakes.cuda_bindings import KERNELS, TALKER, imported

pytest.importorskip("triton", reason="Triton is not installed")
GPU = SimpleNamespace(multi_processor_count=58, shared_memory_per_block_optin=99 * 1024)
# Layers of the predictor and of the talker of 1.7B: rows of weights, inputs, and the epilogue.
PREDICTOR_LAYER = [(4096, 1024, "NORM"), (1024, 2048, "RESIDUAL"), (6144, 1024, "GATED"), (1024, 3072, "RESIDUAL")]
TALKER_LAYER = [(4096, 2048, "NORM"), (2048, 2048, "RESIDUAL"), (12288, 2048, "GATED"), (2048, 6144, "RESIDUAL")]
# The names of the kernels of a layer's products for so many rows.
Chosen = Callable[..., set[str]]


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> Iterator[Chosen]:
    with imported(monkeypatch, f"{KERNELS}.cuda_module", f"{KERNELS}.tensor_map", f"{TALKER}.ops.products") as products:

        def choose(
            layer: list[tuple[int, int, str]],
            rows: int,
            path: KernelPath,
            *,
            batch_invariant: bool = False,
            has_cublas: bool = True,
        ) -> set[str]:
            monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: GPU)
            monkeypatch.setattr(products, "build_tiles", lambda *_, **__: None)
            monkeypatch.setattr(products.cublas, "is_whole", lambda device: has_cublas)
            made = products.Products(torch.device("cuda"), path, batch_invariant=batch_invariant)
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
    assert chosen(TALKER_LAYER, 16, GENERAL) == {"skinny_linear"}
    assert chosen(TALKER_LAYER, 17, GENERAL) == chosen(TALKER_LAYER, 64, GENERAL) == {"block_linear"}
    assert chosen(TALKER_LAYER, 65, GENERAL) == {"cuBLAS"}
    assert chosen(PREDICTOR_LAYER, 65, GENERAL) == chosen(PREDICTOR_LAYER, 256, GENERAL) == {"block_linear"}
    assert chosen(PREDICTOR_LAYER, 257, GENERAL) == {"cuBLAS"}


@pytest.mark.parametrize("path", [GENERAL, HOPPER], ids=lambda path: path.name)
def test_where_cublas_is_wrong_own_kernels_multiply_all(chosen: Chosen, path: KernelPath) -> None:
    for layer in (TALKER_LAYER, PREDICTOR_LAYER):
        for rows in (1, 16, 17, 64, 65, 400, 512, 641, 1025, 8192):
            assert "cuBLAS" not in chosen(layer, rows, path, has_cublas=False)


def test_a_product_that_blocks_do_not_divide_has_another_kernel(chosen: Chosen) -> None:
    assert chosen([(72, 96, "NORM")], 40, GENERAL) == {"skinny_linear"}


@pytest.mark.parametrize("rows", [1, 16, 64, 1024])
def test_batch_invariance_means_one_kernel_for_any_number_of_rows(chosen: Chosen, rows: int) -> None:
    assert chosen(TALKER_LAYER, rows, HOPPER, batch_invariant=True) == {"skinny_linear"}
