"""The codec step's kernels and CUDA graphs, compared with PyTorch and the exporter's step in FP32."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from code2wav_step import startup, weights
from code2wav_step.config import StepConfig
from code2wav_step.rows import ZERO_ROW
from code2wav_step.runner import GraphStepRunner
from code2wav_step.torch_ops import TorchOps, to_int16
from export.agreement import Agreement
from export.forms import python_form
from export.modules.codec import CodecStep
from export.verify import ALL_BATCHES, Verification, failures
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CodecDecoderConfig
from qwen3_tts_engine.checkpoint.tensor_shapes import codec_decoder_shapes
from qwen3_tts_engine.talker import cublas
from scripts.synthetic.configs import CODEC_DECODER
from scripts.synthetic.weights import initial
from tests.fakes.codec_layers import CASES, Inputs, small_config
from tests.fakes.compiled_plugin import close_step, compile_step, load_step, open_step, run_step, workspace_of
from tests.gpu.conftest import DEVICE

LIMIT = Agreement(max_error=0.05, snr_db=35.0)


@pytest.fixture(scope="module")
def reference() -> CodecStep:
    """The exporter's step in the released size, on the CPU."""
    config = CodecDecoderConfig.model_validate(CODEC_DECODER)
    shapes = codec_decoder_shapes(config)
    tensors = {name: initial(name, shape, 0, torch.device("cpu")) for name, shape in shapes.items()}
    return CodecStep(config, tensors, torch.float32).eval()


@pytest.fixture(scope="module")
def model(reference: CodecStep, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("code2wav") / startup.MODEL_FILE
    python_form.build(reference, path)
    return path


@pytest.fixture(scope="module")
def runner(model: Path) -> GraphStepRunner:
    runner = startup.make_runner(startup.load_weights(model, DEVICE), DEVICE)
    assert isinstance(runner, GraphStepRunner)
    assert not isinstance(runner.step.ops, TorchOps)
    return runner


def snr_db(found: Tensor, expected: Tensor) -> float:
    signal, noise = expected.double().square().sum(), (expected.double() - found.double()).square().sum()
    return float(10 * torch.log10(signal / noise.clamp(min=1e-30)))


@pytest.mark.parametrize("name", CASES)
def test_kernel_agrees_with_pytorch(name: str, device: torch.device) -> None:
    from code2wav_step.kernel_ops import KernelOps

    config = small_config()
    exact = CASES[name](TorchOps(config, device), Inputs(device, torch.float32), config)
    found = CASES[name](KernelOps(config, device), Inputs(device, torch.float16), config)
    for a, b in zip(found, exact, strict=True):
        assert snr_db(a, b) > 50


def test_served_step_agrees_with_the_exporter(runner: GraphStepRunner, reference: CodecStep) -> None:
    verification = Verification(reference, python_form.as_step(runner))
    assert verification.batches == ALL_BATCHES
    assert failures(list(verification.run()), LIMIT) == ""


def inputs(config: StepConfig, rows: int, frames: int) -> tuple[Tensor, Tensor, Tensor]:
    codes = torch.randint(0, config.codebook_size, (rows, frames, config.num_quantizers), dtype=torch.int32)
    state = 0.3 * torch.randn(rows, config.state_size)
    return codes, state.to(DEVICE, torch.float16), torch.full((rows, 1), config.window, dtype=torch.int32)


@pytest.mark.parametrize(("rows", "frames"), [(64, 4), (64, 32), (33, 1), (5, 7), (7, 16), (28, 16), (19, 8)])
def test_rows_are_independent_of_batch_and_graph(
    runner: GraphStepRunner, device: torch.device, rows: int, frames: int
) -> None:
    """Not bit-exact, as other tiles sum in another order; mixed rows would differ far more."""
    given = inputs(runner.step.config, rows, frames)
    together = runner(*given)
    for row in (0, rows // 2, rows - 1):
        alone = runner(*(tensor[row : row + 1] for tensor in given))
        for a, b in zip(alone, together, strict=True):
            assert snr_db(a[0], b[row]) > 35


@pytest.mark.parametrize(("rows", "frames"), [(1, 1), (8, 4), (16, 8), (64, 1), (64, 4), (64, 8)])
def test_equal_inputs_give_bit_identical_outputs(
    runner: GraphStepRunner, device: torch.device, rows: int, frames: int
) -> None:
    """A difference between runs indicates a race."""
    given = inputs(runner.step.config, rows, frames)
    first = runner(*given)
    for _ in range(20):
        assert all(torch.equal(a, b) for a, b in zip(runner(*given), first, strict=True))


# Calls with a graph of their own, and calls in parts.
ADVANCED = pytest.mark.parametrize(("batch", "frames"), [(1, 1), (3, 2), (64, 4), (5, 7), (64, 16), (11, 32)])


def places_of(before: np.ndarray, after: np.ndarray, history: Tensor, key: int = 1) -> np.ndarray:
    """Places of a request."""
    columns = (before, after, history[:, 0].numpy(), np.full(len(before), key))
    places: np.ndarray = np.stack(columns, axis=1).astype(np.int32)
    return places


@ADVANCED
def test_rows_give_the_same_pcm_and_states(
    runner: GraphStepRunner, device: torch.device, batch: int, frames: int
) -> None:
    from scripts.benchmarks.codec import filled

    codes, state, history = inputs(runner.config, batch, frames)
    waveform, state_out = runner(codes, state, history)
    rows, _ = filled(state, history[:, 0].numpy(), runner.config.contract)
    before, other = np.arange(1, batch + 1), np.arange(2 * batch, batch, -1)

    def held(numbers: np.ndarray) -> Tensor:
        return rows.gather(rows.open(places_of(numbers, numbers, history)))

    for after in (other, before):
        pcm = runner.advance(codes.numpy(), rows, rows.open(places_of(before, after, history)))
        torch.cuda.synchronize()
        assert torch.equal(pcm, to_int16(waveform, runner.config.contract).cpu())
        assert torch.equal(held(after), state_out)
        assert torch.equal(held(before), state) or after is before


@ADVANCED
def test_denied_entries_and_claims_write_nowhere(
    runner: GraphStepRunner, device: torch.device, batch: int, frames: int
) -> None:
    """A stream of the zero row that begins beside them gets its state."""
    from scripts.benchmarks.codec import filled

    codes, state, history = inputs(runner.config, batch, frames)
    rows, _ = filled(state, history[:, 0].numpy(), runner.config.contract)
    own = np.arange(1, batch + 1)
    kept = places_of(own, own, history)
    for places in (
        places_of(own, own, history, key=2),
        places_of(own, own, 0 * history),
        places_of(own, 0 * own, history),
    ):
        runner.advance(codes.numpy(), rows, rows.open(places))
        torch.cuda.synchronize()
        assert torch.equal(rows.gather(rows.open(kept)), state)
    begun = places_of(np.full(batch, ZERO_ROW), own + batch, 0 * history)
    runner.advance(codes.numpy(), rows, rows.open(begun))
    torch.cuda.synchronize()
    _, expected = runner(codes, torch.zeros_like(state), 0 * history)
    assert torch.equal(rows.gather(rows.open(places_of(own + batch, own + batch, history))), expected)
    assert not rows.gather(rows.open(begun)).any(), "the zero row"


def test_rows_that_were_never_written_are_read_as_zero(runner: GraphStepRunner, device: torch.device) -> None:
    """Callers without a key read public rows."""
    contract = runner.config.contract
    codes, state, history = inputs(runner.config, 2, 4)
    waveform, _ = runner(codes, torch.zeros_like(state), history)
    rows = runner.new_rows()
    public = contract.num_rows - contract.public_rows
    places = places_of(public + np.array([20, 40]), public + np.array([0, 1]), history, key=0)
    pcm = runner.advance(codes.numpy(), rows, rows.open(places))
    torch.cuda.synchronize()
    assert torch.equal(pcm, to_int16(waveform, contract).cpu())


def test_the_plugins_program_agrees_with_the_step(
    runner: GraphStepRunner, model: Path, device: torch.device, tmp_path: Path
) -> None:
    """Streams that begin and continue. Not bit-exact: the program's tables were computed on the CPU."""
    from export.tensorrt.step_program import write_program

    shapes = ((1, 1), (3, 2), (8, 4), (64, 4), (19, 16))
    write_program(weights.load(model, torch.device("cpu"), torch.float16), shapes, tmp_path / "step.program")
    compile_step(tmp_path / "libstep.so")
    load_step(str(tmp_path / "libstep.so"))
    step, problem = open_step((tmp_path / "step.program").read_bytes())
    assert step, problem
    snr: dict[tuple[int, int], list[float]] = {}
    for batch, frames in shapes:
        snr[batch, frames] = []
        codes, _, window = inputs(runner.config, batch, frames)
        rows = runner.new_rows()
        own = np.arange(1, batch + 1)
        for places in (
            places_of(np.full(batch, ZERO_ROW), own, 0 * window),
            places_of(own, own + batch, 0 * window + frames),
            places_of(own + batch, own + batch, 0 * window + 2 * frames),
        ):
            expected = runner.advance(codes.numpy(), rows, rows.open(places))
            pcm = torch.zeros((batch, frames * runner.config.samples_per_frame), dtype=torch.int16, device=device)
            workspace = torch.empty(workspace_of(step, batch, frames), dtype=torch.uint8, device=device)
            given = codes.to(device), torch.from_numpy(places).to(device)
            addresses = [tensor.data_ptr() for tensor in (*given, pcm, workspace)]
            torch.cuda.synchronize()
            assert run_step(step, batch, frames, addresses) == (0, "")
            torch.cuda.synchronize()
            snr[batch, frames].append(snr_db(pcm.cpu(), expected))
    close_step(step)
    assert min(min(each) for each in snr.values()) > 45, snr


def test_codec_without_kernel_support_uses_pytorch(
    tiny_checkpoint: Path, tmp_path: Path, device: torch.device, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not cublas.is_whole(device):
        pytest.skip(cublas.PARTIAL)
    reference = CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint)))
    path = tmp_path / startup.MODEL_FILE
    python_form.build(reference, path)
    with caplog.at_level(logging.WARNING):
        runner = startup.make_runner(startup.load_weights(path, device), device)
    assert "using PyTorch operations" in caplog.text
    assert isinstance(runner, GraphStepRunner)
    assert isinstance(runner.step.ops, TorchOps)
    codes, state, history = inputs(runner.step.config, 2, 3)
    expected, _ = reference(codes, state.float().cpu(), history)
    assert snr_db(runner(codes, state, history)[0].cpu(), expected) > 30
