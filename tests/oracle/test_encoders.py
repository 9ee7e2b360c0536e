"""Resampled audio, mel, x-vector and codes of a recording equal those of the package qwen-tts."""

from pathlib import Path
from typing import Any

import librosa
import numpy as np
import onnxruntime
import pytest
import torch

from export.forms.onnx_form import ONNX
from export.modules.codec_encoder import CodecEncoder
from export.modules.speaker_encoder import SpeakerEncoder
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.voices import encoders
from qwen3_tts_engine.voices.reference_audio import ReferenceAudio, frames, log_mel, mel_filters
from tests.conftest import CheckpointOf
from tests.oracle.reference import load_reference

X_VECTOR_ERROR = 1e-4
# (rate, samples): the shortest, whole and partial frames, other rates; 15 s reach past the encoder's configured window.
RECORDINGS = [
    (24000, 1920), (24000, 1921), (24000, 72007), (24000, 72000 + 480), (24000, 360_077),
    (16000, 16001), (44100, 100_000), (48000, 5000), (8000, 9001), (11025, 30_000),
]  # fmt: skip


def recording(rate: int, count: int) -> np.ndarray:
    """Gliding tones in noise, float32 [samples]."""
    random, time = np.random.default_rng(count), np.arange(count) / rate
    tone = 0.3 * np.sin(1400 * time * (1 + 0.1 * np.sin(3 * time))) + 0.1 * np.sin(5000 * time)
    sound: np.ndarray = tone * (1 + np.sin(7 * time)) / 2 + random.normal(0, 0.05, count)
    return sound.astype(np.float32)


@pytest.fixture(scope="module")
def folder(checkpoint_of: CheckpointOf) -> Path:
    return checkpoint_of("base")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    return load_reference(folder)


@pytest.fixture(scope="module")
def speaker_encoder(folder: Path) -> SpeakerEncoder:
    return SpeakerEncoder.from_checkpoint(Checkpoint.open(str(folder)))


@pytest.fixture(scope="module")
def codec_encoder(folder: Path) -> CodecEncoder:
    return CodecEncoder.from_checkpoint(Checkpoint.open(str(folder)))


def test_mel_filters_equal_librosa() -> None:
    expected = librosa.filters.mel(sr=24000, n_fft=1024, n_mels=128, fmin=0, fmax=12000)
    np.testing.assert_allclose(mel_filters(), expected, atol=1e-8)


@pytest.mark.parametrize(("rate", "count"), RECORDINGS)
@torch.inference_mode()
def test_codes_and_x_vector_equal_the_reference(
    rate: int, count: int, model: Any, speaker_encoder: SpeakerEncoder, codec_encoder: CodecEncoder
) -> None:
    """As in create_voice_clone_prompt, codes use the original rate and the x-vector uses 24 kHz."""
    samples = recording(rate, count)
    [codes] = model.speech_tokenizer.encode(samples, sr=rate).audio_codes
    expected = librosa.resample(samples, orig_sr=rate, target_sr=24000) if rate != 24000 else samples
    resampled = ReferenceAudio.of(samples, rate, 30).resampled()
    np.testing.assert_array_equal(resampled, expected)

    sound = torch.from_numpy(frames(resampled))[None]
    ours = codec_encoder(sound, torch.tensor([[len(resampled)]], dtype=torch.int32))
    np.testing.assert_array_equal(ours[0].numpy(), codes.numpy())
    if len(codes) > 20:
        assert len(np.unique(codes[:, 0])) > 10, "the codes hardly vary"

    vector = speaker_encoder(torch.from_numpy(log_mel(resampled))[None])[0]
    torch.testing.assert_close(vector, model.extract_speaker_embedding(expected, sr=24000), atol=X_VECTOR_ERROR, rtol=0)


def test_exported_encoders_equal_the_reference(tiny_base_models: Path, model: Any) -> None:
    """Compares the ONNX files that Triton serves."""
    sessions = {
        name: onnxruntime.InferenceSession(
            tiny_base_models / name / "1" / ONNX.filename, providers=["CPUExecutionProvider"]
        )
        for name in (encoders.SPEAKER_ENCODER, encoders.CODEC_ENCODER)
    }
    for _, count in RECORDINGS[:5]:
        samples = recording(24000, count)
        feeds = {encoders.AUDIO: frames(samples)[None], encoders.NUM_SAMPLES: np.array([[count]], np.int32)}
        [codes] = sessions[encoders.CODEC_ENCODER].run(None, feeds)
        np.testing.assert_array_equal(codes[0], model.speech_tokenizer.encode(samples, sr=24000).audio_codes[0])
        [vector] = sessions[encoders.SPEAKER_ENCODER].run(None, {encoders.MEL: log_mel(samples)[None]})
        expected = model.extract_speaker_embedding(samples, sr=24000).numpy()
        np.testing.assert_allclose(vector[0], expected, atol=X_VECTOR_ERROR)
