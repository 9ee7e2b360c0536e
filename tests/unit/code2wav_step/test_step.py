"""The codec step of Triton's Python backend on the CPU: agreement with the exporter's step, and refused requests."""

import importlib.util
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from code2wav_step import startup
from code2wav_step import weights as step_weights
from code2wav_step.buckets import GRAIN_ROW_FRAMES, MAX_ROW_FRAMES, Buckets
from code2wav_step.config import Contract, StepConfig
from code2wav_step.requests import InvalidInputError, RequestReader
from code2wav_step.runner import EagerStepRunner
from code2wav_step.step import Step
from code2wav_step.torch_ops import TorchOps, to_int16
from export.agreement import Agreement, compare, compare_step
from export.forms import python_form
from export.modules.codec import CodecStep
from export.reference import Reference
from export.verify import Verification, failures
from qwen3_tts_engine import audio
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.manifest import CodecManifest
from qwen3_tts_engine.codec import contract
from qwen3_tts_engine.codec.client import Code2Wav
from qwen3_tts_engine.codec.contract import (
    LINE,
    MAX_BATCH,
    MAX_FRAMES,
    NO_SAMPLE,
    NUM_ROWS,
    PCM_SCALE,
    PUBLIC_ROWS,
    ZERO_ROW,
    RowCounts,
)
from qwen3_tts_engine.codec.line import Line
from qwen3_tts_engine.request import RequestError

CPU = torch.device("cpu")
MODEL = Path(__file__).parents[3] / "model_repository" / "code2wav" / "1" / "model.py"
KEY, OTHER_KEY, NO_KEY = 5, 6, 0
DENIED = [NO_SAMPLE, NO_SAMPLE]
Place = tuple[int, int, int, int]


@pytest.fixture(scope="module")
def reference(tiny_checkpoint: Path) -> CodecStep:
    return CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint)))


@pytest.fixture(scope="module")
def repository(tiny_python_code2wav: Path) -> Path:
    return tiny_python_code2wav / "code2wav"


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


Tensors = dict[str, np.ndarray]


def tensors(rows: int = 1, frames: int = 2) -> Tensors:
    """A request of streams that begin."""
    places = [(ZERO_ROW, row, 0, KEY) for row in range(1, rows + 1)]
    return {
        "codes": np.full((rows, frames, 16), 7, np.int32),
        "places": np.array(places, np.int32).reshape(rows, 4),
    }


def put(name: str, place: Any, value: int) -> Callable[[Tensors], None]:
    return lambda given: given[name].__setitem__(place, value)


MALFORMED: list[tuple[Callable[[Tensors], Any], str]] = [
    (lambda t: t.pop("codes"), r"codes: missing, int32 \[-1, -1, 16\] expected"),
    (lambda t: t.update(codes=t["codes"].astype(np.int64)), r"codes: int64 \[1, 2, 16\] given"),
    (lambda t: t.update(codes=t["codes"][..., :15]), r"codes: int32 \[1, 2, 15\] given"),
    (lambda t: t.update(codes=t["codes"][0]), r"codes: int32 \[2, 16\] given"),
    (lambda t: t.update(codes=t["codes"][:, :0]), "codes: frames: 0 given, 1 to 32 expected"),
    (lambda t: t.update(codes=t["codes"].repeat(17, 1)), "codes: frames: 34 given, 1 to 32 expected"),
    (lambda t: t.update(tensors(rows=0)), "codes: rows: 0 given, 1 to 64 expected"),
    (lambda t: t.update(tensors(rows=65)), "codes: rows: 65 given, 1 to 64 expected"),
    (put("codes", (0, 1), 2048), "codes: 2048 given, 0 to 2047 expected"),
    (put("codes", (0, 1, 3), -1), "codes: -1 given, 0 to 2047 expected"),
    (lambda t: t.pop("places"), r"places: missing, int32 \[1, 4\] expected"),
    (lambda t: t.update(places=t["places"][:, :3]), r"places: int32 \[1, 3\] given, int32 \[1, 4\] expected"),
    (lambda t: t.update(places=t["places"].repeat(2, 0)), r"places: int32 \[2, 4\] given, int32 \[1, 4\] expected"),
    (lambda t: t.update(places=t["places"].astype(np.float32)), r"places: float32 \[1, 4\] given"),
    (put("places", (0, 0), -1), f"places: rows: -1 given, 0 to {NUM_ROWS - 1} expected"),
    (put("places", (0, 1), NUM_ROWS), f"places: rows: {NUM_ROWS} given, 0 to {NUM_ROWS - 1} expected"),
    (put("places", (0, 2), 72), "places: history: 72 given, 0 to 71 expected"),
    (put("places", (0, 2), -1), "places: history: -1 given, 0 to 71 expected"),
]


@pytest.mark.parametrize(("corrupt", "message"), MALFORMED, ids=[message[:24] for _, message in MALFORMED])
def test_refuses_a_malformed_request(config: StepConfig, corrupt: Callable[[Tensors], Any], message: str) -> None:
    request = tensors()
    corrupt(request)
    with pytest.raises(InvalidInputError, match=message):
        RequestReader(config).read(request)


def test_reads_a_request_as_it_is(config: StepConfig) -> None:
    given = tensors(rows=MAX_BATCH, frames=MAX_FRAMES)
    request = RequestReader(config).read(given)
    assert (request.codes is given["codes"], request.places is given["places"]) == (True, True)


class FakeError(Exception):
    INVALID_ARG, INTERNAL = 1, 2

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class FakeTensor:
    name: str
    array: np.ndarray

    def as_numpy(self) -> np.ndarray:
        return self.array


class FakeRequest:
    def __init__(self, tensors: Tensors, **parameters: str) -> None:
        self.tensors, self._parameters = tensors, json.dumps(parameters)

    def parameters(self) -> str:
        return self._parameters


def find_input(request: FakeRequest, name: str) -> FakeTensor | None:
    return FakeTensor(name, request.tensors[name]) if name in request.tensors else None


LoadModel = Callable[..., Any]


@pytest.fixture
def load_model(monkeypatch: pytest.MonkeyPatch) -> LoadModel:
    """Loads the model of a folder as Triton does: `load(folder, executor)`."""
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

    def load(folder: Path, executor: str = "kernels") -> Any:
        model = module.TritonPythonModel()
        arguments = {"model_repository": str(folder), "model_version": "1", "model_instance_kind": "CPU"}
        config = {"parameters": {"executor": {"string_value": executor}}}
        model.initialize(arguments | {"model_name": "code2wav", "model_config": json.dumps(config)})
        return model

    return load


@pytest.fixture
def model(load_model: LoadModel, repository: Path) -> Any:
    return load_model(repository)


def advance(model: Any, codes: np.ndarray, *places: Place) -> np.ndarray:
    """The samples of a request."""
    [response] = model.execute([FakeRequest({"codes": codes, "places": np.array(places, np.int32)})])
    assert response.error is None
    [pcm] = response.tensors
    assert pcm.name == "pcm"
    samples: np.ndarray = pcm.array
    assert (samples.shape, samples.dtype) == ((len(codes), codes.shape[1] * audio.SAMPLES_PER_FRAME), np.int16)
    return samples


def alike(found: np.ndarray, expected: np.ndarray) -> bool:
    """Equal but for rounding: the order of a sum may depend on the batch."""
    return int(np.abs(found.astype(int) - expected).max()) <= 1


def random_codes(rows: int, frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2048, (rows, frames, 16), np.int32)


def test_step_follows_the_contract_of_its_file(
    load_model: LoadModel, repository: Path, config: StepConfig, tmp_path: Path
) -> None:
    other = Contract(
        **{name: f"other_{value}" for name, value in contract.terms().items() if isinstance(value, str)},
        num_rows=48, public_rows=16, max_frames=4, max_batch=2, pcm_scale=100, no_sample=-101,
    )  # fmt: skip
    (tmp_path / "1").mkdir()
    file = tmp_path / "1" / startup.MODEL_FILE
    save_file(load_file(repository / "1" / startup.MODEL_FILE), file, replace(config, contract=other).to_metadata())
    model = load_model(tmp_path)

    def respond(given: Tensors, *places: Place, **parameters: str) -> Any:
        given |= {"places": np.array(places, np.int32)} if places else {}
        named = {f"other_{name}": array for name, array in given.items()}
        [response] = model.execute([FakeRequest(named, **parameters)])
        return response

    response = respond(tensors(rows=2, frames=4))
    assert [output.name for output in response.tensors] == ["other_pcm"]
    assert np.abs(response.tensors[0].array).max() <= 100
    response = respond(tensors(rows=2), (31, 31, 0, KEY), (32, 32, 0, KEY))
    assert (response.tensors[0].array[:, :2] == -101).all(axis=1).tolist() == [False, True], "row 32 is public"
    for response, message in (
        (respond(tensors(rows=3, frames=1)), "other_codes: rows: 3 given, 1 to 2 expected"),
        (respond(tensors(rows=1, frames=5)), "other_codes: frames: 5 given, 1 to 4 expected"),
        (respond(tensors(), (ZERO_ROW, 48, 0, KEY)), "other_places: rows: 48 given, 0 to 47 expected"),
        (respond(tensors()), None),
    ):
        assert (response.error and str(response.error)) == (message and f"INVALID_ARG: {message}")
    response = respond(tensors(), other_line="nowhere")
    assert str(response.error) == "INVALID_ARG: other_line: not an address issued by a talker"
    [response] = model.execute([FakeRequest(tensors())])
    assert str(response.error).startswith("INVALID_ARG: other_codes: missing")
    assert to_int16(torch.tensor([[9.0, -0.5], [torch.nan, 0.0]]), other).tolist() == [[100, -50], [-101, 0]]


@pytest.mark.parametrize(
    ("value", "sample"),
    [
        (0.3, 9830),
        (-0.3, -9830),
        (1.0, 32767),
        (-9.0, -32767),
        (0.5 / 32767, 0),
        (torch.inf, NO_SAMPLE),
        (torch.nan, NO_SAMPLE),
    ],
)
def test_samples_are_clamped_and_rows_that_overflowed_are_marked(value: float, sample: int, config: StepConfig) -> None:
    [[first, second]] = to_int16(torch.tensor([[value, 0.25]]), config.contract).tolist()
    assert (first, second) == (sample, 0 if sample == NO_SAMPLE else 8192)


def test_an_invalid_request_does_not_affect_others_in_its_execution(model: Any) -> None:
    """Its valid entry writes nothing either: the last request continues the stream of the first one."""
    codes = random_codes(2, 3)
    bad = tensors(rows=2)
    bad["codes"][1, 0, 0] = 5000
    good = {"codes": codes[:1, :1], "places": np.array([(ZERO_ROW, 1, 0, KEY)], np.int32)}
    next_one = {"codes": codes[:1, 1:], "places": np.array([(1, 1, 1, KEY)], np.int32)}
    first, refused, last = model.execute([FakeRequest(good), FakeRequest(bad), FakeRequest(next_one)])
    assert refused.error.code == FakeError.INVALID_ARG
    assert str(refused.error) == "INVALID_ARG: codes: 5000 given, 0 to 2047 expected"
    whole = advance(model, codes[:1], (ZERO_ROW, 2, 0, KEY))
    found = np.concatenate([response.tensors[0].array for response in (first, last)], axis=1)
    assert alike(found, whole)


def test_an_unexpected_failure_is_an_internal_error(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("out of memory")

    monkeypatch.setattr(model._runner, "advance", fail)
    [response] = model.execute([FakeRequest(tensors())])
    assert (response.error.code, str(response.error)) == (FakeError.INTERNAL, "out of memory")


def test_startup_fails_if_required_kernels_cannot_be_built(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no compiler")

    monkeypatch.setattr(startup, "_kernel_ops", broken)
    monkeypatch.setenv(startup.KERNELS, "required")
    weights: Any = SimpleNamespace(config=None)
    with pytest.raises(RuntimeError, match="no compiler"):
        startup.make_runner(weights, torch.device("cuda"))


@pytest.fixture(params=["kernels", "onnxruntime"])
def any_model(request: pytest.FixtureRequest, load_model: LoadModel, repository: Path, tiny_code2wav: Path) -> Any:
    """The model in both forms that have rows."""
    folder = {"kernels": repository, "onnxruntime": tiny_code2wav / "code2wav"}[request.param]
    return load_model(folder, request.param)


def test_streams_continue_in_their_own_rows_as_the_exporters_step_does(any_model: Any, reference: CodecStep) -> None:
    """Two streams start from the zero row, change their order and move; another one starts meanwhile."""
    codes = random_codes(3, 9)
    exact = Reference(reference)
    whole, _ = exact(torch.from_numpy(codes), exact.cold(3), exact.history(3, 0))
    parts: dict[int, list[np.ndarray]] = {0: [], 1: [], 2: []}

    def call(start: int, stop: int, **places: Place) -> None:
        """Frames of streams: `stream_1=place`."""
        streams = [int(name.removeprefix("stream_")) for name in places]
        for stream, samples in zip(
            streams, advance(any_model, codes[streams, start:stop], *places.values()), strict=True
        ):
            parts[stream].append(samples)

    call(0, 1, stream_0=(ZERO_ROW, 7, 0, KEY), stream_1=(ZERO_ROW, 20, 0, KEY))
    call(1, 4, stream_1=(20, 20, 1, KEY), stream_0=(7, 300, 1, KEY))
    call(0, 4, stream_2=(ZERO_ROW, 7, 0, KEY))
    call(4, 9, stream_0=(300, 300, 4, KEY), stream_2=(7, 7, 4, KEY), stream_1=(20, 20, 4, KEY))
    found = np.stack([np.concatenate(samples) for samples in parts.values()])
    # The file for kernels has half-precision weights.
    assert compare(whole.clamp(-1, 1), torch.from_numpy(found / PCM_SCALE)).within(python_form.PYTHON.limit)


def test_other_callers_keys_are_denied_and_leave_no_trace(model: Any) -> None:
    """A request with one's own and others' rows, between two chunks of two streams."""
    codes = random_codes(2, 3)
    expected = [advance(model, codes[:, :1], (ZERO_ROW, 11, 0, KEY), (ZERO_ROW, 12, 0, KEY))]
    expected.append(advance(model, codes[:, 1:], (11, 11, 1, KEY), (12, 12, 1, KEY)))
    begun = advance(model, codes[:, :1], (ZERO_ROW, 1, 0, KEY), (ZERO_ROW, 2, 0, OTHER_KEY))
    assert alike(begun, expected[0])
    attempts = [(1, 1, 1), (ZERO_ROW, 1, 0), (1, 3, 1), (1, 1, 0), (1, 2, 1)]
    pcm = advance(
        model,
        np.concatenate([codes[1:, 1:], np.repeat(codes[:1, 1:], 2 * len(attempts), 0)]),
        (2, 2, 1, OTHER_KEY),
        *((*attempt, key) for attempt in attempts for key in (OTHER_KEY, NO_KEY)),
    )
    assert (pcm[1:, :2] == NO_SAMPLE).all()
    assert pcm[0, :2].tolist() != DENIED
    assert alike(pcm[0], expected[1][1])
    continued = advance(model, codes[:, 1:], (1, 1, 1, KEY), (1, 2, 1, KEY))
    assert alike(continued[0], expected[1][0])
    assert continued[1, :2].tolist() == DENIED


def test_a_denied_row_has_the_sound_of_nobody(model: Any) -> None:
    """What it computes starts from the zero row."""
    codes = random_codes(1, 3)
    advance(model, codes, (ZERO_ROW, 1, 0, KEY))
    assert not advance(model, codes, (1, 1, 3, OTHER_KEY))[0, 2:].any()
    both = np.repeat(codes, 2, axis=0)
    denied, fresh = advance(model, both, (1, 1, 3, OTHER_KEY), (ZERO_ROW, 2, 3, OTHER_KEY))
    assert denied[:2].tolist() == DENIED
    assert alike(denied[2:], fresh[2:])


def test_callers_without_a_key_have_the_public_rows(model: Any) -> None:
    public = NUM_ROWS - PUBLIC_ROWS
    codes = random_codes(1, 3)
    expected = [advance(model, codes[:, :1], (ZERO_ROW, 1, 0, KEY)), advance(model, codes[:, 1:], (1, 1, 1, KEY))]
    for row in (public, NUM_ROWS - 1):
        assert alike(advance(model, codes[:, :1], (ZERO_ROW, row, 0, NO_KEY)), expected[0])
        assert alike(advance(model, codes[:, 1:], (row, row, 1, NO_KEY)), expected[1])
        assert advance(model, codes, (ZERO_ROW, row, 0, KEY))[0, :2].tolist() == DENIED
    assert advance(model, codes, (ZERO_ROW, 1, 0, NO_KEY))[0, :2].tolist() == DENIED
    assert advance(model, codes, (1, public, 3, NO_KEY))[0, :2].tolist() == DENIED


@pytest.mark.parametrize("key", [KEY, NO_KEY])
def test_the_zero_row_cannot_be_written(model: Any, key: int) -> None:
    codes = random_codes(1, 3)
    expected = advance(model, codes, (ZERO_ROW, 1, 0, KEY))
    for before, history in ((ZERO_ROW, 0), (ZERO_ROW, 3), (1, 3)):
        assert advance(model, codes, (before, ZERO_ROW, history, key))[0, :2].tolist() == DENIED
    assert alike(advance(model, codes, (ZERO_ROW, 1, 0, KEY)), expected)


def test_a_claim_keeps_rows_from_others_and_their_states(model: Any) -> None:
    codes = random_codes(1, 3)
    expected = [advance(model, codes[:, :1], (ZERO_ROW, 1, 0, KEY)), advance(model, codes[:, 1:], (1, 1, 1, KEY))]
    claim = np.zeros((2, 1, 16), np.int32)
    assert (advance(model, claim, (1, 1, 0, KEY), (2, 2, 0, KEY))[:, :2] != DENIED).any(axis=1).all()
    assert advance(model, codes, (ZERO_ROW, 2, 0, OTHER_KEY))[0, :2].tolist() == DENIED
    advance(model, codes[:, :1], (ZERO_ROW, 2, 0, KEY))
    advance(model, claim, (1, 1, 0, KEY), (2, 2, 0, KEY))
    assert alike(advance(model, codes[:, 1:], (2, 2, 1, KEY)), expected[1])


def fill(model: Any, row: int, value: float, key: int = KEY) -> None:
    places = model._rows.open(np.array([(ZERO_ROW, row, 0, key)], np.int32))
    model._rows.scatter(places, torch.full((1, model._config.state_size), value))


def test_reports_nonfinite_rows_without_affecting_others(any_model: Any) -> None:
    codes = np.repeat(random_codes(1, 1), 3, 0)
    expected = advance(any_model, codes, *((ZERO_ROW, row, 0, KEY) for row in (1, 2, 3)))
    fill(any_model, 1, torch.nan)
    fill(any_model, 4, torch.nan, OTHER_KEY)
    pcm = advance(any_model, codes, (1, 1, 9, KEY), (ZERO_ROW, 2, 0, KEY), (4, 3, 9, KEY))
    assert pcm[[0, 2], :2].tolist() == [[NO_SAMPLE, 0], DENIED]
    assert alike(pcm[1], expected[1])
    # The row is good again for another stream.
    assert alike(advance(any_model, codes, *((ZERO_ROW, row, 0, KEY) for row in (1, 2, 3))), expected)


def test_a_talker_that_starts_again_gets_all_its_rows_back(any_model: Any) -> None:
    """Also the row of a stream that overflowed: neither its state nor the sound of its claim is finite."""
    asked: list[list[int]] = []

    def call(codes: np.ndarray, places: np.ndarray) -> np.ndarray:
        asked[-1] += places[:, 1].tolist()
        return advance(any_model, codes, *places.tolist())

    for _ in range(2):
        asked.append([])
        Code2Wav(call, KEY, RowCounts(slots=3, voices=0), max_history=71, max_chunk_frames=16).claim()
        fill(any_model, 2, torch.nan)
    assert asked == [[1, 2, 3]] * 2, "no other row was needed"


def test_a_request_with_an_address_opens_a_direct_line(model: Any) -> None:
    """Its calls continue the streams of requests; an address opens one line only."""
    codes, line = random_codes(2, 6), Line()
    begin, go_on = ([(ZERO_ROW, 1, 0, KEY), (ZERO_ROW, 2, 0, KEY)], [(1, 1, 3, KEY), (2, 2, 3, KEY)])
    advance(model, codes[:, :3], *begin)
    expected = advance(model, codes[:, 3:], *go_on)
    request = {"codes": codes[:, :3], "places": np.array(begin, np.int32)}
    responses = model.execute([FakeRequest(request, **{LINE: line.address})] * 2)
    assert all(response.error is None for response in responses)
    while not line.is_open():
        time.sleep(0.001)
    places = np.array(go_on, np.int32)
    places[1, 3] = OTHER_KEY
    line.announce()
    pcm = line.call(codes[:, 3:], places)
    assert alike(pcm[0], expected[0])
    assert pcm[1, :2].tolist() == DENIED
    places[0, 0] = NUM_ROWS
    with pytest.raises(RequestError, match=f"code2wav: places: rows: {NUM_ROWS} given"):
        line.call(codes[:, 3:], places)


def test_an_announced_call_has_no_effect(model: Any) -> None:
    """The codec prepares for it by the last call."""
    codes, line = random_codes(1, 6), Line()
    model.execute([FakeRequest(tensors(), **{LINE: line.address})])
    while not line.is_open():
        time.sleep(0.001)
    place = np.array([(1, 1, 3, KEY)], np.int32)
    parts = []
    for announced in (False, True):
        line.call(codes[:, :3], np.array([(ZERO_ROW, 1, 0, KEY)], np.int32))
        if announced:
            line.announce()
        parts.append(line.call(codes[:, 3:], place))
    assert alike(parts[0], parts[1])


def test_refuses_an_address_that_no_talker_issued(model: Any) -> None:
    line = Line()
    forged = json.dumps({**json.loads(line.address), "secret": "0" * 32})
    for address in (forged, "nowhere"):
        [response] = model.execute([FakeRequest(tensors(), **{LINE: address})])
        assert response.error.code == FakeError.INVALID_ARG
        assert str(response.error) == "INVALID_ARG: line: not an address issued by a talker"
    assert not line.is_open()
