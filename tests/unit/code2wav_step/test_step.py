"""The codec step of Triton's Python backend on the CPU: agreement with the exporter's step, and refused requests."""

import importlib.util
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from rich.progress import Progress
from safetensors.torch import load_file, save_file
from torch import Tensor

from code2wav_step import startup
from code2wav_step import weights as step_weights
from code2wav_step.buckets import GRAIN_ROW_FRAMES, MAX_ROW_FRAMES, Buckets
from code2wav_step.config import Contract, StepConfig
from code2wav_step.pcm import to_int16
from code2wav_step.requests import InvalidInputError, RequestReader
from code2wav_step.runner import EagerStepRunner
from code2wav_step.shared_states import SharedStates
from code2wav_step.step import Step
from code2wav_step.torch_ops import TorchOps
from export.agreement import Agreement, compare_step
from export.code2wav import export
from export.forms import python_form
from export.modules.codec import CodecStep
from export.reference import Reference
from export.verify import Verification, failures
from qwen3_tts_engine import audio
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.manifest import CodecManifest
from qwen3_tts_engine.codec import contract
from qwen3_tts_engine.codec.contract import MAX_BATCH, MAX_FRAMES
from qwen3_tts_engine.codec.shared_memory import leave_note, shared_zeros
from qwen3_tts_engine.codec.states import to_pcm

CPU = torch.device("cpu")
MODEL = Path(__file__).parents[3] / "model_repository" / "code2wav" / "1" / "model.py"


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path) -> CodecStep:
    return CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint)))


@pytest.fixture(scope="module")
def repository(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    with Progress(disable=True) as progress:
        export(Checkpoint.open(str(tiny_checkpoint)), folder, python_form.PYTHON, progress)
    return folder / "code2wav"


@pytest.fixture(scope="module")
def config(repository: Path) -> StepConfig:
    return startup.load_weights(repository / "1" / startup.MODEL_FILE, CPU).config


def test_waveform_and_state_match_the_exporters_step(reference: CodecStep) -> None:
    config = python_form.step_config(reference.config)
    weights = step_weights.assemble(config, python_form.folded(reference), torch.float32)
    step = python_form.as_step(EagerStepRunner(Step(weights, TorchOps(config, CPU))))
    limit = Agreement(max_error=2e-5, snr_db=90.0)
    assert failures(list(Verification(reference, step, (1, 2, 7)).run()), limit) == ""
    exact = Reference(reference)
    state, history = exact.cold(2) + 0.1, exact.history(2, 7)
    for frames in (3, 13, MAX_FRAMES):
        codes = torch.randint(0, config.codebook_size, (2, frames, 16), dtype=torch.int32, device=exact.device)
        assert compare_step(exact(codes, state, history), step(codes, state, history)).within(limit), frames


def test_export_writes_half_precision_and_a_manifest(repository: Path, reference: CodecStep) -> None:
    manifest = CodecManifest.read(repository / "1")
    assert (manifest.form, manifest.state_dtype, manifest.opset) == ("python", "FP16", None)
    weights = step_weights.load(repository / "1" / startup.MODEL_FILE, CPU, torch.float16)
    assert weights.config.state_size == manifest.state_size == reference.state_size
    assert weights.first.weight.dtype == torch.float16
    assert weights.first.alpha is not None
    assert weights.first.alpha.dtype == torch.float32


def test_step_configuration_covers_the_layout(config: StepConfig) -> None:
    assert config.samples_per_frame == audio.SAMPLES_PER_FRAME
    convolutions = {name for name, _ in config.layout} - {"keys", "values"}
    assert config.positions.keys() == convolutions


def test_exported_file_carries_the_whole_contract(config: StepConfig) -> None:
    assert asdict(config.contract) == contract.terms()


@pytest.mark.parametrize("frames", range(1, MAX_FRAMES + 1))
def test_captured_shapes_cover_every_call_shape(frames: int) -> None:
    buckets = Buckets(MAX_BATCH, MAX_FRAMES)
    lengths = [stop - start for start, stop in buckets.spans(frames)]
    assert sum(lengths) == frames
    assert all(length & (length - 1) == 0 for length in lengths)
    for length in lengths:
        for rows in range(1, MAX_BATCH + 1):
            parts = list(buckets.groups(rows, length))
            assert [first for first, _, _ in parts] == [0, *(last for _, last, _ in parts[:-1])]
            assert parts[-1][1] == rows
            assert all(last - first <= bucket and bucket * length <= MAX_ROW_FRAMES for first, last, bucket in parts)
            assert all((bucket, length) in buckets.shapes for _, _, bucket in parts)
            padding = sum(bucket - (last - first) for first, last, bucket in parts) * length
            assert padding < max(GRAIN_ROW_FRAMES, rows * length / 4)


def test_names_missing_and_foreign_files(tmp_path: Path) -> None:
    path = tmp_path / startup.MODEL_FILE
    with pytest.raises(ValueError, match=r"model\.safetensors: missing; `python -m export --form python`"):
        startup.load_weights(path, CPU)
    save_file({"x": torch.zeros(1)}, path)
    with pytest.raises(
        ValueError,
        match=r"model\.safetensors: not an exported code2wav step of this version: .*; run `python -m export` again",
    ):
        startup.load_weights(path, CPU)


def test_names_a_missing_tensor(tmp_path: Path, config: StepConfig) -> None:
    path = tmp_path / startup.MODEL_FILE
    save_file({"codebooks": torch.zeros(1)}, path, config.to_metadata())
    with pytest.raises(ValueError, match=r"tensor 'pre\.weight' is missing"):
        startup.load_weights(path, CPU)


def tensors(config: StepConfig, rows: int = 1, frames: int = 2) -> dict[str, Tensor]:
    return {
        "codes": torch.full((rows, frames, 16), 7, dtype=torch.int32),
        "state": torch.zeros(rows, config.state_size, dtype=torch.float16),
        "history": torch.zeros(rows, 1, dtype=torch.int32),
    }


MALFORMED: list[tuple[Callable[[dict[str, Tensor]], Any], str]] = [
    (lambda t: t.pop("codes"), r"codes: missing, int32 \[-1, -1, 16\] expected"),
    (lambda t: t.update(codes=t["codes"].long()), r"codes: int64 \[1, 2, 16\] given"),
    (lambda t: t.update(codes=t["codes"][..., :15]), r"codes: int32 \[1, 2, 15\] given"),
    (lambda t: t.update(codes=t["codes"][:, :0]), "codes: frames: 0 given, 1 to 32 expected"),
    (lambda t: t.update(codes=t["codes"].repeat(1, 17, 1)), "codes: frames: 34 given, 1 to 32 expected"),
    (lambda t: t["codes"][0, 1].fill_(2048), "codes: 2048 given, 0 to 2047 expected"),
    (lambda t: t["codes"][0, 1, 3].fill_(-1), "codes: -1 given, 0 to 2047 expected"),
    (lambda t: t.update(state=t["state"][:, 1:]), r"state: float16 \[1, \d+\] given, float16 \[1, \d+\] expected"),
    (lambda t: t.update(state=t["state"].float()), r"state: float32 .* given, float16"),
    (
        lambda t: t.update(state=t["state"].repeat(2, 1)),
        r"state: float16 \[2, \d+\] given, float16 \[1, \d+\] expected",
    ),
    (lambda t: t["history"].fill_(72), "history: 72 given, 0 to 71 expected"),
    (lambda t: t["history"].fill_(-1), "history: -1 given, 0 to 71 expected"),
]


@pytest.mark.parametrize(("corrupt", "message"), MALFORMED, ids=[message[:24] for _, message in MALFORMED])
def test_refuses_a_malformed_request(config: StepConfig, corrupt: Callable[[Any], Any], message: str) -> None:
    request = tensors(config)
    corrupt(request)
    with pytest.raises(InvalidInputError, match=message):
        RequestReader(config).read(request)


class FakeError(Exception):
    INVALID_ARG, INTERNAL = 1, 2

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class FakeTensor(SimpleNamespace):
    def to_dlpack(self) -> Tensor:
        return self.tensor

    @staticmethod
    def from_dlpack(name: str, tensor: Tensor) -> "FakeTensor":
        return FakeTensor(name=name, tensor=torch.from_dlpack(tensor))


class FakeRequest:
    def __init__(
        self, tensors: dict[str, Tensor], outputs: Sequence[str] = ("waveform", "state_out"), **parameters: str
    ) -> None:
        self.tensors, self._outputs, self._parameters = tensors, list(outputs), json.dumps(parameters)

    def parameters(self) -> str:
        return self._parameters

    def requested_output_names(self) -> list[str]:
        return self._outputs


def find_input(request: FakeRequest, name: str) -> FakeTensor | None:
    return FakeTensor(tensor=request.tensors[name]) if name in request.tensors else None


LoadModel = Callable[[Path], Any]


@pytest.fixture
def load_model(monkeypatch: pytest.MonkeyPatch) -> LoadModel:
    """Loads the model of a folder as Triton does."""
    fake: Any = ModuleType("triton_python_backend_utils")
    fake.TritonError, fake.Tensor, fake.get_input_tensor_by_name = FakeError, FakeTensor, find_input
    fake.InferenceResponse = lambda tensors=(), error=None: SimpleNamespace(tensors=list(tensors), error=error)
    fake.Logger = SimpleNamespace(log_info=print, log_warn=print)
    monkeypatch.setitem(sys.modules, fake.__name__, fake)
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    spec = importlib.util.spec_from_file_location("code2wav_model", MODEL)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module.guard, "start", lambda model_name: None)

    def load(folder: Path) -> Any:
        model = module.TritonPythonModel()
        arguments = {"model_repository": str(folder), "model_version": "1", "model_instance_kind": "CPU"}
        model.initialize(arguments | {"model_name": "code2wav"})
        return model

    return load


@pytest.fixture
def model(load_model: LoadModel, repository: Path) -> Any:
    return load_model(repository)


def test_step_follows_the_contract_of_its_file(
    load_model: LoadModel, repository: Path, config: StepConfig, tmp_path: Path
) -> None:
    other = Contract(
        **{name: f"other_{value}" for name, value in contract.terms().items() if isinstance(value, str)},
        max_frames=4, max_batch=2, pcm_scale=100, overflow=-101,
    )  # fmt: skip
    (tmp_path / "1").mkdir()
    file = tmp_path / "1" / startup.MODEL_FILE
    save_file(load_file(repository / "1" / startup.MODEL_FILE), file, replace(config, contract=other).to_metadata())
    model = load_model(tmp_path)
    request = {f"other_{name}": tensor for name, tensor in tensors(config, rows=2, frames=4).items()}
    [response] = model.execute([FakeRequest(request, ["other_waveform", "other_state_out"])])
    assert [output.name for output in response.tensors] == ["other_waveform", "other_state_out"]
    for invalid, message in (
        (tensors(config, rows=3, frames=1), "other_codes: rows: 3 given, 1 to 2 expected"),
        (tensors(config, rows=1, frames=5), "other_codes: frames: 5 given, 1 to 4 expected"),
        (tensors(config), None),
    ):
        request = {f"other_{name}": tensor for name, tensor in invalid.items()}
        [response] = model.execute([FakeRequest(request, ["other_waveform"])])
        assert (response.error and str(response.error)) == (message and f"INVALID_ARG: {message}")
    [response] = model.execute([FakeRequest(tensors(config))])
    assert str(response.error).startswith("INVALID_ARG: other_codes: missing")
    assert to_int16(torch.tensor([[9.0, -0.5], [torch.nan, 0.0]]), other).tolist() == [[100, -50], [-101, 0]]


@pytest.mark.parametrize("value", [0.0, 0.3, -0.3, 1.0, -1.0, 9.0, -9.0, 0.5 / 32767, torch.inf, torch.nan])
def test_engine_and_step_convert_to_pcm_alike(value: float, config: StepConfig) -> None:
    waveform = torch.tensor([[value, 0.25]])
    expected, failed = to_pcm(waveform)
    assert to_int16(waveform, config.contract).tolist() == expected.tolist()
    assert bool(failed) == (expected[0, 0] == contract.OVERFLOW) == (not math.isfinite(value))


def test_an_invalid_request_does_not_affect_others_in_its_execution(model: Any, config: StepConfig) -> None:
    good, bad = tensors(config, rows=3), tensors(config)
    bad["codes"][0, 0, 0] = 5000
    first, refused, last = model.execute([FakeRequest(good), FakeRequest(bad), FakeRequest(good)])
    assert refused.error.code == FakeError.INVALID_ARG
    assert str(refused.error) == "INVALID_ARG: codes: 5000 given, 0 to 2047 expected"
    for response in (first, last):
        waveform, state_out = response.tensors
        assert (waveform.name, waveform.tensor.shape, waveform.tensor.dtype) == ("waveform", (3, 3840), torch.float32)
        assert (state_out.name, state_out.tensor.dtype) == ("state_out", torch.float16)
        assert state_out.tensor.shape == (3, config.state_size)
    torch.testing.assert_close(first.tensors[0].tensor, last.tensors[0].tensor)


def test_startup_fails_if_required_kernels_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(startup, "_kernel_ops", broken)
    monkeypatch.setenv(startup.KERNELS, "required")
    weights: Any = SimpleNamespace(config=None)
    with pytest.raises(RuntimeError, match="no compiler"):
        startup.make_runner(weights, torch.device("cuda"))


def shared(states: tuple[Tensor, str], rows: list[list[int]], codes: Tensor, history: int) -> FakeRequest:
    places = torch.tensor([[*pair, history] for pair in rows], dtype=torch.int32)
    return FakeRequest({"codes": codes, "places": places}, ["pcm"], states=states[1])


def test_shared_states_give_the_same_pcm_as_states_by_value(model: Any, config: StepConfig) -> None:
    """Two streams start from the row of zeros and continue in their own rows; all other rows stay unchanged."""
    states = shared_zeros("talker", (5, config.state_size), torch.float16, CPU)
    states[0][0] = 7.0
    codes = torch.randint(0, 2048, (2, 3, 16), dtype=torch.int32)
    sent, history = torch.zeros(2, config.state_size, dtype=torch.float16), 0
    for start, stop, rows in ((0, 1, [[4, 2], [4, 1]]), (1, 3, [[2, 2], [1, 1]])):
        chunk = codes[:, start:stop].contiguous()
        given = {"codes": chunk, "state": sent, "history": torch.full((2, 1), history, dtype=torch.int32)}
        [by_value] = model.execute([FakeRequest(given)])
        [by_row] = model.execute([shared(states, rows, chunk, history)])
        waveform, sent = (output.tensor.clone() for output in by_value.tensors)
        expected, failed = to_pcm(waveform)
        assert not failed
        assert (by_row.tensors[0].tensor.numpy() == expected).all()
        history += stop - start
    assert torch.equal(states[0][[2, 1]], sent)
    assert (states[0][0] == 7.0).all()
    assert not states[0][3:].any()


def test_reports_nonfinite_rows_without_affecting_others(model: Any, config: StepConfig) -> None:
    states = shared_zeros("talker", (3, config.state_size), torch.float16, CPU)
    states[0][0] = torch.nan
    codes = torch.zeros(2, 1, 16, dtype=torch.int32)
    [response] = model.execute([shared(states, [[0, 0], [2, 1]], codes, 0)])
    assert (response.tensors[0].tensor[:, 0] == contract.OVERFLOW).tolist() == [True, False]
    assert torch.isfinite(states[0][1]).all()


def test_refuses_states_that_cannot_be_shared(model: Any, config: StepConfig) -> None:
    size = config.state_size
    states = shared_zeros("talker", (3, size), torch.float16, CPU)
    other_size = shared_zeros("talker", (3, size - 1), torch.float16, CPU)
    other_type = shared_zeros("talker", (3, size), torch.float32, CPU)
    on_gpu = leave_note({"owner": "talker", "shape": [3, size], "dtype": "float16", "cuda": [0]})
    for parameter, message in (
        (other_size[1], f"states: float16 [{size - 1}] given, float16 [{size}] expected"),
        (other_type[1], f"states: float32 [{size}] given"),
        (on_gpu, "states: on cuda:0, this model runs on cpu: run one server for each GPU"),
    ):
        assert_refused(model, (states[0], parameter), message)
    for rows, outputs, parameters, message in (
        ([[0, 3]], ["pcm"], {"states": states[1]}, "INVALID_ARG: places: rows: 3 given, 0 to 2 expected"),
        ([[-1, 0]], ["pcm"], {"states": states[1]}, "INVALID_ARG: places: rows: -1 given, 0 to 2 expected"),
        (
            [[0, 0]] * 2,
            ["pcm"],
            {"states": states[1]},
            "INVALID_ARG: places: int32 [2, 3] given, int32 [1, 3] expected",
        ),
        (
            [[2, 0]],
            ["waveform"],
            {"states": states[1]},
            "INVALID_ARG: only pcm can be computed from codes, places",
        ),
        ([[2, 0]], ["pcm"], {}, "INVALID_ARG: states: missing"),
    ):
        given = shared(states, rows, torch.zeros(1, 1, 16, dtype=torch.int32), 0).tensors
        [response] = model.execute([FakeRequest(given, outputs, **parameters)])
        assert message in str(response.error)


def assert_refused(model: Any, states: tuple[Tensor, str], message: str) -> None:
    [response] = model.execute([shared(states, [[2, 0]], torch.zeros(1, 1, 16, dtype=torch.int32), 0)])
    assert response.error.code == FakeError.INVALID_ARG
    assert message in str(response.error)


def test_refuses_a_state_address_without_the_secret(model: Any, config: StepConfig, tmp_path: Path) -> None:
    """The locations of the note and the states are guessable: process ids and file numbers are small."""
    states = shared_zeros("talker", (3, config.state_size), torch.float16, CPU)
    address = json.loads(states[1])
    known = model._shared.addresses
    (tmp_path / "note").write_text(json.dumps({"secret": "mine"}))
    with (tmp_path / "note").open() as file, os.fdopen(os.memfd_create("other"), "w+") as other:
        other.write(json.dumps({"secret": "mine"}))
        other.flush()
        for forged in (
            {**address, "secret": "0" * 32},
            {**address, "secret": ""},
            {**address, "secret": None},
            {"note": address["note"]},
            {"note": [os.getpid(), file.fileno()], "secret": "mine"},
            {"note": [os.getpid(), other.fileno()], "secret": "mine"},
            {"note": ["1/../self", 0], "secret": "mine"},
            {"owner": "talker", "shape": [3, config.state_size], "dtype": "float16", "file": address["note"]},
            {},
            [],
        ):
            assert_refused(
                model, (states[0], json.dumps(forged)), "INVALID_ARG: states: not an address issued by a talker"
            )
    assert_refused(model, (states[0], "nowhere"), "INVALID_ARG: states: not an address issued by a talker")
    assert_refused(model, (states[0], "[" * 100_000), "INVALID_ARG: states: not an address issued by a talker")
    assert model._shared.addresses == known
    [response] = model.execute([shared(states, [[2, 0]], torch.zeros(1, 1, 16, dtype=torch.int32), 0)])
    assert response.error is None


def no_line(place: object, states: torch.Tensor) -> None:
    raise AssertionError("no talker of these tests has a line")


def test_a_restarted_talker_replaces_its_mapped_states(config: StepConfig) -> None:
    mapped = SharedStates(CPU, config.state_size, config.contract, no_line)
    first, second, other = (
        shared_zeros(owner, (2, config.state_size), torch.float16, CPU) for owner in ("talker", "talker", "other")
    )
    assert mapped.find(first[1]) is mapped.find(first[1])
    mapped.find(other[1])
    mapped.find(second[1])[1] = 3.0
    assert mapped.addresses == {second[1], other[1]}
    assert (second[0][1] == 3.0).all()
