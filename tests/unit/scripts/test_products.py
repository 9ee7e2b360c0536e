"""The tiles of cluster_linear, and their comparison: the table, and that a lost process costs one kernel."""

import os
import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from qwen3_tts_engine.checkpoint.configs import TalkerConfig, TransformerConfig
from qwen3_tts_engine.talker.kernels.cluster_linear import FEW_BLOCKS, MIN_STAGES, PAIRED, STEP, cluster_linear, divides
from scripts.benchmarks.products import candidates, worker
from scripts.benchmarks.products.candidates import MAX_SHARED, REFERENCES, Item
from scripts.benchmarks.products.shapes import PRODUCTS, Product
from scripts.benchmarks.products.table import Measurement, lines, problems, records
from scripts.benchmarks.products.worker import Worker
from scripts.synthetic.configs import model_config
from tests.fakes.products import measuring

KERNELS = Path(__file__).parents[3] / "model_repository/qwen3_tts/1/qwen3_tts_engine/talker/kernels"
SOURCE, ARCHITECTURE = KERNELS / "cluster_linear.cu", "sm_90a"
ROWS = (1, 16, 32, 40, 64, 96, 128)
RIGHT = {"relative_error": 2e-3, "same_bits": True}


def of_layer(prefix: str, config: TransformerConfig) -> dict[str, Product]:
    """The products of a layer, from the configuration of the checkpoint."""
    hidden, inner, queries = config.hidden_size, config.intermediate_size, config.query_size
    keys = config.num_key_value_heads * config.head_dim
    return {
        f"{prefix}.qkv": Product(queries + 2 * keys, hidden, norm=True),
        f"{prefix}.out": Product(hidden, queries, residual=True),
        f"{prefix}.gate": Product(inner, hidden, norm=True, gated=True),
        f"{prefix}.down": Product(hidden, inner, residual=True),
        f"{prefix}.head": Product(config.vocab_size, hidden, norm=True, float_out=True),
    }


def test_products_are_those_of_the_released_checkpoint() -> None:
    ids = {f"{name}_token_id": 0 for name in ("im_start", "im_end", "assistant", "tts_pad", "tts_bos", "tts_eos")}
    talker = TalkerConfig.model_validate(model_config("1.7b", "custom_voice", ids)["talker_config"])
    predictor = talker.code_predictor_config
    project = Product(predictor.hidden_size, talker.hidden_size, norm=True, bias=True)
    assert of_layer("p", predictor) | of_layer("t", talker) | {"project": project} == PRODUCTS


@pytest.mark.parametrize("product", PRODUCTS)
@pytest.mark.parametrize("rows", ROWS)
def test_a_tile_divides_its_product_and_fits_a_multiprocessor(product: str, rows: int) -> None:
    shape = PRODUCTS[product]
    assert divides(shape.outputs, shape.inputs, gated=shape.gated)
    served = cluster_linear(shape.outputs, shape.inputs, rows, **shape.flags)
    for form in (served, *candidates.forms(product, rows).values()):
        assert form.N % form.outputs == form.K % (form.SPLIT * STEP) == form.ROWS % (8 * form.SPLIT) == 0, form
        assert form.ROWS % (form.threads // 8) == 0, form
        assert form.shared_bytes <= MAX_SHARED, form
        assert rows <= form.ROWS
        assert min(MIN_STAGES, form.K // form.SPLIT // STEP) <= form.STAGES <= form.K // form.SPLIT // STEP, form


def test_two_blocks_of_a_served_tile_fit_a_multiprocessor_unless_there_are_few() -> None:
    served = [cluster_linear(one.outputs, one.inputs, 64, **one.flags) for one in PRODUCTS.values()]
    assert not [form for form in served if form.shared_bytes > PAIRED and form.blocks > FEW_BLOCKS]


def test_a_shape_that_no_tile_divides_is_left_to_other_kernels() -> None:
    assert divides(256, 128, gated=False)
    assert not divides(96, 128, gated=False)
    assert not divides(256, 96, gated=False)


def test_macros_are_those_of_the_source() -> None:
    documented = set(re.findall(r"\b[A-Z_]{4,}\b", "".join(re.findall(r"^//.*$", SOURCE.read_text(), re.MULTILINE))))
    assert cluster_linear(4096, 1024, 32).macros.keys() - {"N", "K"} <= documented


def test_every_product_is_also_measured_as_served_and_by_the_other_kernels() -> None:
    found = candidates.items(["p.out", "project"], [32, 64])
    assert sum(item.form is None for item in found) == 2 * 2 * len(REFERENCES)
    assert len(set(found)) == len(found)


def results(**found: Measurement) -> dict[Item, Measurement]:
    return {Item("p.qkv", 32, kernel): measurement for kernel, measurement in found.items()}


def test_a_line_names_the_fastest_candidate_that_is_right() -> None:
    measured = results(
        served=Measurement(5.0, **RIGHT),
        skinny=Measurement(7.0, **RIGHT),
        cublas=Measurement(6.0, **RIGHT),
        g2s4=Measurement(4.0, **RIGHT),
        g1s2=Measurement(3.0, 0.5, True),
        g1s4=Measurement(3.5, 2e-3, False),
        g2s2=Measurement(failure="its process hung"),
        g4s2=Measurement(4.5, **RIGHT),
    )
    [line] = lines(measured)
    assert list(line.values()) == [
        "p.qkv", "32", "5.00", "7.00", "6.00", "g2s4", "4.00", "80%", "g1s2 3.00!, g1s4 3.50~, g4s2 4.50, g2s2 -"
    ]  # fmt: skip
    assert list(problems(measured)) == [
        "p.qkv 32 g1s2: relative error 5.0e-01",
        "p.qkv 32 g1s4: two runs differ",
        "p.qkv 32 g2s2: its process hung",
    ]


def test_a_line_without_a_right_candidate_names_none() -> None:
    references = {"served": Measurement(5.0, **RIGHT), "skinny": Measurement(), "cublas": Measurement()}
    measured = results(**references, g2s4=Measurement(4.0, None, True))
    [line] = lines(measured)
    assert list(line.values()) == ["p.qkv", "32", "5.00", "-", "-", "none", "", "", "g2s4 4.00!"]
    assert "p.qkv 32 g2s4: outputs are not finite" in problems(measured)


def test_records_hold_the_macros() -> None:
    form = candidates.forms("p.qkv", 32)["g2s4"]
    [record] = records({Item("p.qkv", 32, "g2s4", form): Measurement(4.0, **RIGHT)})
    assert record["macros"]["SPLIT"] == 4
    assert (record["us"], record["relative_error"], record["same_bits"], record["failure"]) == (4.0, 2e-3, True, None)


def test_a_lost_process_costs_one_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "MAX_LOST", 2)
    with closing(Worker(measuring, seconds=5)) as found:
        right, died, hung = (found.measure(Item("p.qkv", 32, kernel)).failure for kernel in ("g2s4", "die", "hang"))
        assert (right, died, hung) == (None, "its process died", "its process hung")
        assert found.measure(Item("p.qkv", 32, "g2s4")).failure == "skipped after 2 lost processes"


@pytest.mark.skipif(not shutil.which("nvcc"), reason="requires nvcc")
@pytest.mark.parametrize(("product", "rows"), [("p.qkv", 40), ("p.down", 64), ("t.gate", 32), ("t.head", 128)])
def test_served_tiles_compile_without_spilling_registers(product: str, rows: int) -> None:
    shape = PRODUCTS[product]
    form = cluster_linear(shape.outputs, shape.inputs, rows, **shape.flags)
    macros = [f"-D{name}={value}" for name, value in form.macros.items()]
    options = ["-cubin", f"-arch={ARCHITECTURE}", "-std=c++17", "--use_fast_math", "-Xptxas", "-v"]
    command = ["nvcc", *options, *macros, "-o", os.devnull, str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores" in done.stderr
    assert "warning" not in done.stderr
