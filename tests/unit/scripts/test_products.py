"""The comparison of products: which kernels, their macros, the table, and that a lost process costs one kernel."""

import os
import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from qwen3_tts_engine.checkpoint.configs import TalkerConfig, TransformerConfig
from scripts.benchmarks.products import candidates, worker
from scripts.benchmarks.products.candidates import DIAGNOSES, MAX_SHARED, OPTIONS, PAIRED, REFERENCES, Item
from scripts.benchmarks.products.cluster_linear import ARCHITECTURE, SOURCE, STEP
from scripts.benchmarks.products.shapes import PRODUCTS, Product
from scripts.benchmarks.products.table import Measurement, lines, problems, records
from scripts.benchmarks.products.worker import Worker
from scripts.synthetic.configs import model_config
from tests.fakes.products import measuring

HEADERS = Path(__file__).parents[3] / "model_repository/qwen3_tts/1/qwen3_tts_engine/talker/kernels"
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
def test_a_form_divides_its_product_and_fits_a_multiprocessor(product: str, rows: int) -> None:
    for name, form in candidates.forms(product, rows, diagnose=True).items():
        outputs = 64 * form.GROUPS // (1 + form.GATED)
        assert form.N % outputs == form.K % (form.SPLIT * STEP) == 0, name
        assert form.blocks == form.N // outputs * form.SPLIT
        assert form.shared_bytes <= MAX_SHARED, name
        assert rows <= form.ROWS
        assert form.STAGES > form.LAG or form.steps <= form.STAGES, name


def test_two_blocks_of_the_first_tile_fit_a_multiprocessor() -> None:
    first = {product: next(iter(candidates.forms(product, 64).values())) for product in PRODUCTS}
    assert not [product for product, form in first.items() if form.shared_bytes > PAIRED]


def test_forms_have_the_macros_of_their_product_and_option() -> None:
    forms = candidates.forms("t.gate", 40, diagnose=True)
    assert list(forms)[:2] == ["g3s2", "g3s2+"]
    assert {"NORM": 1, "GATED": 1, "RESIDUAL": 0, "ROWS": 64}.items() <= forms["g3s2"].macros.items()
    for name, macros in (OPTIONS | DIAGNOSES).items():
        assert macros.items() <= forms[name].macros.items()
        assert (forms[name].GROUPS, forms[name].SPLIT) == (3, 2)
    assert not DIAGNOSES.keys() & candidates.forms("t.gate", 40).keys()


def test_macros_are_those_of_the_sources() -> None:
    sources = "".join(path.read_text() for path in (SOURCE, *SOURCE.parent.glob("*.cuh")))
    documented = set(re.findall(r"\b[A-Z_]{4,}\b", "".join(re.findall(r"^//.*$", sources, re.MULTILINE))))
    macros = candidates.form("p.qkv", 32, 2, 4, PAIRED).macros
    assert macros.keys() - {"N", "K", "LAG"} <= documented


def test_every_product_is_also_measured_today_and_with_cublas() -> None:
    found = candidates.items(["p.out", "project"], [32, 64], diagnose=False)
    assert sum(item.form is None for item in found) == 2 * 2 * len(REFERENCES)
    assert len(set(found)) == len(found)


def results(**found: Measurement) -> dict[Item, Measurement]:
    return {Item("p.qkv", 32, kernel): measurement for kernel, measurement in found.items()}


def test_a_line_names_the_fastest_candidate_that_is_right() -> None:
    measured = results(
        today=Measurement(5.0, **RIGHT),
        cublas=Measurement(6.0, **RIGHT),
        g2s4=Measurement(4.0, **RIGHT),
        g1s2=Measurement(3.0, 0.5, True),
        ahead=Measurement(3.5, 2e-3, False),
        mma=Measurement(failure="its process hung"),
        lag2=Measurement(4.5, **RIGHT),
    )
    [line] = lines(measured)
    assert list(line.values()) == [
        "p.qkv", "32", "5.00", "6.00", "g2s4", "4.00", "80%", "g1s2 3.00!, ahead 3.50~, lag2 4.50, mma -"
    ]  # fmt: skip
    assert list(problems(measured)) == [
        "p.qkv 32 g1s2: relative error 5.0e-01",
        "p.qkv 32 ahead: two runs differ",
        "p.qkv 32 mma: its process hung",
    ]


def test_a_line_without_a_right_candidate_names_none() -> None:
    measured = results(today=Measurement(5.0, **RIGHT), cublas=Measurement(), g2s4=Measurement(4.0, None, True))
    [line] = lines(measured)
    assert list(line.values()) == ["p.qkv", "32", "5.00", "-", "none", "", "", "g2s4 4.00!"]
    assert "p.qkv 32 g2s4: outputs are not finite" in problems(measured)


def test_records_hold_the_macros() -> None:
    form = candidates.form("p.qkv", 32, 2, 4, PAIRED)
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
@pytest.mark.parametrize(
    ("product", "rows", "kernel"), [("p.qkv", 40, "g2s4"), ("p.qkv", 64, "mma"), ("t.down", 128, "g1s8")]
)
def test_forms_compile_without_spilling_registers(product: str, rows: int, kernel: str) -> None:
    form = candidates.forms(product, rows, diagnose=True)[kernel]
    macros = [f"-D{name}={value}" for name, value in form.macros.items()]
    options = ["-cubin", f"-arch={ARCHITECTURE}", "-std=c++17", "--use_fast_math", "-Xptxas", "-v", f"-I{HEADERS}"]
    command = ["nvcc", *options, *macros, "-o", os.devnull, str(SOURCE)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "0 bytes spill stores" in done.stderr
    assert "warning" not in done.stderr
