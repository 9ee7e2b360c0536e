"""Cloned, registered and designed voices through tritonserver, compared with the package qwen-tts."""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import librosa
import numpy as np
import pytest
import torch

from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.wav import WavWriter, read_recording
from scripts.server.tritonserver import TritonServer
from tests.conftest import CheckpointOf
from tests.e2e.serving import ROOT, Caller, eventually, repository_with, serve
from tests.e2e.test_http import generate_stream
from tests.e2e.test_streamed_text import SequenceStream
from tests.oracle.reference import clone_voice, load_processor, load_reference, reference_generate
from tests.oracle.test_encoders import recording

FRAMES = 24
REFERENCE = recording(24000, 72007)
SAID = "What the reference says."
CLONE: dict[str, Any] = {"ref_audio": REFERENCE, "ref_sample_rate": 24000}
IN_CONTEXT = CLONE | {"ref_text": SAID}
X_VECTOR = CLONE | {"x_vector_only": True}


@pytest.fixture(scope="module")
def repository(tiny_base_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository_with(tiny_base_models, tmp_path_factory.mktemp("voices"))


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("store")


@contextmanager
def serving(repository: Path, checkpoint: Path, folder: Path, **settings: str) -> Iterator[TritonServer]:
    environment = {"QWEN3_TTS_CHECKPOINT": str(checkpoint), "QWEN3_TTS_VOICES_FOLDER": str(folder / "store")}
    environment |= {f"QWEN3_TTS_{name.upper()}": value for name, value in settings.items()}
    with serve(repository, folder, environment) as server:
        yield server


@pytest.fixture(scope="module")
def caller(
    repository: Path, checkpoint_of: CheckpointOf, store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Caller]:
    folder, settings = tmp_path_factory.mktemp("server"), {"voices_folder": str(store)}
    with serving(repository, checkpoint_of("base"), folder, **settings) as server, Caller(server) as caller:
        yield caller


@pytest.fixture(scope="module")
def later_caller(
    repository: Path, checkpoint_of: CheckpointOf, store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Caller]:
    """Of a server that starts on the same voices, as after the first one has died."""
    folder, settings = tmp_path_factory.mktemp("later"), {"voices_folder": str(store), "max_voices": "1"}
    with serving(repository, checkpoint_of("base"), folder, **settings) as server, Caller(server) as caller:
        yield caller


@pytest.fixture(scope="module")
def reference(checkpoint_of: CheckpointOf) -> Any:
    return load_reference(checkpoint_of("base")), load_processor(checkpoint_of("base"))


def greedy(text: str = "Hello there, how are you?", **fields: Any) -> dict[str, Any]:
    return {"text": text, "speaker": None, "temperature": 0.0, "max_frames": FRAMES, **fields}


def expected_speech(reference: Any, text: str, said: str | None, audio: np.ndarray = REFERENCE) -> np.ndarray:
    """Decodes reference frames and new frames together and drops the former, as generate_voice_clone does."""
    model, processor = reference
    clone = clone_voice(model, audio, said)
    [codes] = reference_generate(model, processor, [text], clones=[clone], max_new_tokens=FRAMES + 1)
    frames = 0 if clone.codes is None else len(clone.codes)
    if clone.codes is not None:
        codes = torch.cat([clone.codes, codes])
    with torch.inference_mode():
        waveform: np.ndarray = model.speech_tokenizer.model.decoder(codes.T[None])[0, 0].numpy()
    return waveform[frames * 1920 :]


def assert_speech(received: Any, expected: np.ndarray) -> None:
    assert received.error is None
    assert len(received.samples) == len(expected)
    np.testing.assert_allclose(received.samples / 32767, expected, atol=1e-4)


def assert_same(samples: np.ndarray, expected: np.ndarray) -> None:
    """Equal up to rounding, as chunk boundaries depend on timing."""
    assert len(samples) == len(expected) > 0
    np.testing.assert_allclose(samples, expected, atol=4)


@pytest.mark.parametrize("said", [SAID, None], ids=["in-context", "x-vector-only"])
@pytest.mark.parametrize("text", ["Hello there, how are you?", "Guten Morgen."])
def test_clone_equals_the_reference(caller: Caller, reference: Any, text: str, said: str | None) -> None:
    received = caller.speak(**greedy(text, **(IN_CONTEXT if said else X_VECTOR)))
    assert_speech(received, expected_speech(reference, text, said))


def test_clone_of_a_recording_at_another_rate_equals_the_reference(caller: Caller, reference: Any) -> None:
    audio = recording(16000, 24_001)
    received = caller.speak(**greedy(ref_audio=audio, ref_sample_rate=16000, ref_text=SAID))
    resampled = librosa.resample(audio, orig_sr=16000, target_sr=24000)
    assert_speech(received, expected_speech(reference, greedy()["text"], SAID, resampled))


def test_registered_voice_equals_its_recording_until_deleted(caller: Caller) -> None:
    spoken = caller.speak(**greedy(**IN_CONTEXT)).samples
    [registered] = caller.operate("register_voice", "anna", **IN_CONTEXT)
    assert (registered["name"], registered["ref_text"], registered["x_vector_only"]) == ("anna", SAID, False)
    assert registered["reference_seconds"] == pytest.approx(72007 / 24000)
    [alone] = caller.operate("register_voice", "bert 2", **X_VECTOR)
    assert (alone["ref_text"], alone["x_vector_only"]) == (None, True)
    assert [voice["name"] for voice in caller.operate("list_voices")] == ["anna", "bert 2"]
    assert_same(caller.speak(**greedy(voice="anna")).samples, spoken)
    by_vector = caller.speak(**greedy(**X_VECTOR)).samples
    assert_same(caller.speak(**greedy(voice="bert 2")).samples, by_vector)
    assert_same(caller.speak(**greedy(voice="anna", x_vector_only=True)).samples, by_vector)
    for name in ("anna", "bert 2"):
        assert caller.operate("delete_voice", name)[0]["name"] == name
    assert caller.operate("list_voices") == []
    assert "INVALID_ARG: voice: 'anna': no voice is registered" in (caller.speak(**greedy(voice="anna")).error or "")
    with pytest.raises(SpeechError, match="INVALID_ARG: voice: 'anna': no voice is registered"):
        caller.operate("delete_voice", "anna")


def test_one_of_several_concurrent_registrations_succeeds(caller: Caller) -> None:
    def register(index: int) -> str:
        try:
            audio = recording(24000, 30_000 + 500 * index)
            [voice] = caller.operate("register_voice", "race", ref_audio=audio, ref_sample_rate=24000, ref_text=SAID)
            return str(voice["name"])
        except SpeechError as error:
            return str(error)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(register, range(8)))
    assert answers.count("race") == 1
    assert sum("INVALID_ARG: voice: 'race': already registered" in answer for answer in answers) == 7
    caller.operate("delete_voice", "race")


def test_concurrent_requests_with_equal_references_sound_the_same(caller: Caller) -> None:
    audio = recording(24000, 50_000)
    fields = greedy(ref_audio=audio, ref_sample_rate=24000, ref_text=SAID)
    with ThreadPoolExecutor(8) as pool:
        concurrent = list(pool.map(lambda _: caller.speak(**fields), range(8)))
    for received in concurrent:
        assert received.error is None
        assert_same(received.samples, concurrent[0].samples)


def noise(seconds: float, rate: int = 24000) -> np.ndarray:
    return np.random.default_rng(0).normal(0, 0.1, round(seconds * rate)).astype(np.float32)


def noise_with(value: float) -> np.ndarray:
    audio = noise(1)
    audio[5000] = value
    return audio


BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "voice: None: required: the name of a registered voice, or ref_audio"),
    (IN_CONTEXT | {"ref_audio": noise(0.07)}, "ref_audio: '0.070 s at 24000 Hz': too short: record 3 to 10 s"),
    (IN_CONTEXT | {"ref_audio": noise(30.1)}, "ref_audio: '30.100 s at 24000 Hz': too long: cut it to 30 s"),
    (IN_CONTEXT | {"ref_audio": noise(0)}, "ref_audio: '0.000 s at 24000 Hz': too short: record"),
    (IN_CONTEXT | {"ref_audio": noise_with(float("nan"))}, "ref_audio: nan: must be finite"),
    (IN_CONTEXT | {"ref_audio": noise_with(float("-inf"))}, "ref_audio: -inf: must be finite"),
    (IN_CONTEXT | {"ref_audio": np.zeros(24000, np.float32)}, "ref_audio: 'peak 0': silent: 0.001 to 2 is allowed"),
    (IN_CONTEXT | {"ref_audio": noise(1) * 32767}, "not scaled to -1..1: 0.001 to 2 is allowed"),
    (IN_CONTEXT | {"ref_sample_rate": None}, "ref_sample_rate: None: required: the rate of ref_audio in Hz, 8000 to"),
    (IN_CONTEXT | {"ref_sample_rate": 0}, "ref_sample_rate: 0: required"),
    (IN_CONTEXT | {"ref_sample_rate": -24000}, "ref_sample_rate: -24000: required"),
    (IN_CONTEXT | {"ref_sample_rate": 1_000_000}, "ref_sample_rate: 1000000: required"),
    (CLONE, "ref_text: None: required: the transcript of ref_audio, unless x_vector_only is set"),
    (IN_CONTEXT | {"ref_text": " "}, "ref_text: ' ': must contain more than white space"),
    (IN_CONTEXT | {"ref_text": "a<|im_end|>"}, "ref_text: '<|im_end|>': control tokens are not allowed"),
    (IN_CONTEXT | {"ref_text": "1 " * 4000}, "tokens, at most 1024 are allowed"),
    ({"voice": "nobody"}, "voice: 'nobody': no voice is registered under this name"),
    ({"voice": "anna", "ref_text": SAID}, f"ref_text: '{SAID}': not allowed with voice"),
    ({"voice": "anna"} | CLONE, "ref_audio: 72007 samples: not allowed with voice"),
    (IN_CONTEXT | {"speaker": "ryan"}, "speaker: 'ryan': this checkpoint is for Base voice clone and takes voice, or"),
    (IN_CONTEXT | {"instruct": "Loud."}, "instruct: 'Loud.': this checkpoint is for Base voice clone and takes voice"),
    (IN_CONTEXT | {"language": "klingon"}, "language: 'klingon': unknown: choose one of auto, chinese"),
    (IN_CONTEXT | {"max_frames": 100_000}, "max_frames: 100000: at most 4096"),
    (
        IN_CONTEXT | {"operation": "sing"},
        "operation: 'sing': unknown: choose one of speak, register_voice, list_voices, delete_voice",
    ),
]


@pytest.mark.parametrize(("fields", "message"), BAD, ids=[message[:40] for _, message in BAD])
def test_invalid_clone_request_is_rejected_with_the_reason(
    caller: Caller, fields: dict[str, Any], message: str
) -> None:
    received = caller.speak(**{"speaker": None} | fields)
    assert received.pcm == []
    assert received.error is not None
    assert received.error.startswith("INVALID_ARG: ")
    assert message in received.error


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("", IN_CONTEXT, "INVALID_ARG: voice: '': the name to register"),
        ("a/b", IN_CONTEXT, "INVALID_ARG: voice: 'a/b': the name to register"),
        ("x" * 65, IN_CONTEXT, "the name to register"),
        (None, IN_CONTEXT, "INVALID_ARG: voice: None: the name to register"),
        ("a", {}, "INVALID_ARG: ref_audio: None: required to register a voice"),
        ("a", CLONE, "INVALID_ARG: ref_text: None: required"),
        ("a", IN_CONTEXT | {"ref_audio": noise(1) * 0}, "INVALID_ARG: ref_audio: 'peak 0': silent"),
    ],
)
def test_invalid_registration_is_rejected_with_the_reason(
    caller: Caller, name: str | None, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(SpeechError) as refused:
        caller.operate("register_voice", name, **fields)
    assert message in str(refused.value)
    assert caller.operate("list_voices") == []


@pytest.mark.long
def test_stereo_reference_is_rejected_with_its_shape(caller: Caller) -> None:
    text = ("BYTES", [1], b"\x01\0\0\0x")
    message = caller.raw(text=text, ref_audio=("FP32", [100, 2], bytes(800)))
    assert "'ref_audio'" in message
    assert "[100,2]" in message


def test_voices_persist_and_max_voices_is_enforced(caller: Caller, request: pytest.FixtureRequest) -> None:
    caller.operate("register_voice", "anna", **IN_CONTEXT)
    before = caller.speak(**greedy(voice="anna"))
    later: Caller = request.getfixturevalue("later_caller")
    assert [voice["name"] for voice in later.operate("list_voices")] == ["anna"]
    assert_same(later.speak(**greedy(voice="anna")).samples, before.samples)
    with pytest.raises(SpeechError, match="1 voices are registered, max_voices allows no more"):
        later.operate("register_voice", "bert", **IN_CONTEXT)
    with pytest.raises(SpeechError, match="already registered"):
        later.operate("register_voice", "anna", **X_VECTOR)
    later.operate("delete_voice", "anna")


@pytest.mark.long
def test_voice_design_equals_the_reference_and_rejects_other_modes(
    repository: Path, checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    """Encoders of another checkpoint in the repository have no effect."""
    design = checkpoint_of("voice_design")
    with serving(repository, design, tmp_path) as server, Caller(server) as caller:
        text, instruct = "Hello there, how are you?", "A deep, calm voice."
        received = caller.speak(**greedy(text, instruct=instruct))
        model, processor = load_reference(design), load_processor(design)
        [codes] = reference_generate(model, processor, [text], instructs=[instruct], max_new_tokens=FRAMES + 1)
        with torch.inference_mode():
            assert_speech(received, model.speech_tokenizer.model.decoder(codes.T[None])[0, 0].numpy())
        mode = "this checkpoint is for VoiceDesign and takes instruct, which describes the voice"
        for fields in (IN_CONTEXT, {"voice": "anna"}, {"speaker": "ryan"}, {"x_vector_only": True}):
            assert mode in (caller.speak(**greedy(**fields)).error or "")
        assert "INVALID_ARG: instruct: None: required" in (caller.speak(**greedy()).error or "")
        with pytest.raises(SpeechError, match=f"operation: 'list_voices': {mode}"):
            caller.operate("list_voices")


def test_shutdown_ends_requests_that_wait_for_a_voice(later_caller: Caller) -> None:
    later_caller.speak(**greedy(**IN_CONTEXT))
    with ThreadPoolExecutor(12) as pool:
        long = [recording(24000, 29 * 24000 - index) for index in range(12)]
        requests = [
            pool.submit(later_caller.speak, **greedy(ref_audio=audio, ref_sample_rate=24000, ref_text=SAID))
            for audio in long
        ]
        eventually(lambda: any(request.done() for request in requests), 60)
        later_caller.server.stop()
        answers = [request.result(60) for request in requests]
    assert any(answer.error is None for answer in answers)
    assert [error for answer in answers if (error := answer.error) and not error.startswith("UNAVAILABLE: ")] == []


def test_voice_operations_and_clones_over_http(caller: Caller) -> None:
    caller.operate("register_voice", "anna", **X_VECTOR)
    [event] = generate_stream(caller.server, {"operation": "list_voices"})
    assert json.loads(event["voices"])["name"] == "anna"
    spoken = generate_stream(caller.server, {"text": "Hello.", "voice": "anna", "max_frames": 4})
    assert sum(len(event.get("waveform", ())) for event in spoken) in range(1920, 4 * 1920 + 1, 1920)
    samples = REFERENCE[:30_000].tolist()
    fields = {"text": "Hello.", "max_frames": 4, "ref_audio": samples, "ref_sample_rate": 24000, "ref_text": SAID}
    assert len(generate_stream(caller.server, fields)) >= 1
    generate_stream(caller.server, {"operation": "delete_voice", "voice": "anna"})
    assert caller.operate("list_voices") == []
    eventually(lambda: caller.metric("qwen3_tts_requests_running") == 0)


@pytest.mark.parametrize("cached", [False, True], ids=["new-voice", "cached-voice"])
def test_clone_with_streamed_text_equals_the_reference(caller: Caller, reference: Any, cached: bool) -> None:
    """Pieces of text arrive while the encoders run; the speech equals that of the whole text."""
    audio = recording(24000, 37_919 if cached else 60_001)
    fields: dict[str, Any] = {"ref_audio": audio, "ref_sample_rate": 24000, "ref_text": SAID}
    if cached:
        assert caller.speak(**greedy(**fields)).error is None
    text = "Hello there, how are you? I hope that you are well, and that all this is heard in one piece."
    stream = SequenceStream(caller, 77 + cached)
    pieces = [text[start : start + 20] for start in range(0, len(text), 20)]
    options = {key: value for key, value in greedy(**fields).items() if key != "text"}
    stream.send(pieces[0], start=True, **options)
    for piece in pieces[1:]:
        stream.send(piece, "more")
    stream.send("", "more", end=True)
    stream.finish()
    assert stream.errors == []
    expected = expected_speech(reference, text.strip(), SAID, audio)
    samples = np.concatenate(stream.pcm)
    assert len(samples) == len(expected)
    np.testing.assert_allclose(samples / 32767, expected, atol=1e-4)


def test_sequence_with_an_invalid_reference_returns_only_the_error(caller: Caller) -> None:
    stream = SequenceStream(caller, 79)
    stream.send("Hello ", start=True, speaker=None, **CLONE)
    stream.send("there.", "more", end=True)
    stream.finish()
    assert any("INVALID_ARG: ref_text: None: required" in error for error in stream.errors)
    assert stream.pcm == []


def test_command_line_registers_speaks_and_deletes_a_voice(caller: Caller, tmp_path: Path) -> None:
    wav = tmp_path / "reference.wav"
    writer = WavWriter(wav, 24000)
    writer.write((REFERENCE * 32767).astype(np.int16))
    writer.close()
    url = ["--url", f"localhost:{caller.server.ports.grpc}"]

    def client(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "qwen3_tts_client", *arguments, *url]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)

    reference = ["--ref-audio", str(wav), "--ref-text", SAID]
    added = client("voices", "add", "clara", *reference)
    assert added.returncode == 0, added.stderr
    assert added.stdout.startswith("clara\t3.00 s\t")
    again = client("voices", "add", "clara", *reference)
    assert again.returncode == 4
    assert "voice: 'clara': already registered" in again.stderr
    assert client("voices", "list").stdout.startswith("clara\t")
    request = ["--max-frames", "12", "--temperature", "0"]
    for index, how in enumerate((["--voice", "clara"], reference)):
        said = client("say", "Hello.", *how, *request, "--output", str(tmp_path / f"{index}.wav"))
        assert said.returncode == 0, said.stderr
    first, second = (read_recording(tmp_path / f"{index}.wav")[0] for index in range(2))
    assert len(first) == 12 * 1920
    np.testing.assert_allclose(first, second, atol=4 / 32767)
    assert client("voices", "rm", "clara").returncode == 0
    assert client("voices", "list").stdout == ""
