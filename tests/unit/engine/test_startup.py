"""Errors of a talker that cannot start."""

import re
import sys
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from qwen3_tts_engine.arguments import check_instances
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.manifest import CodecManifest
from qwen3_tts_engine.codec.contract import CODES, LINE, PCM, PLACES
from qwen3_tts_engine.config import ConfigError, EngineConfig
from qwen3_tts_engine.interfaces import ModelCall
from qwen3_tts_engine.startup import (
    check_codec,
    choose_device,
    fit_memory,
    open_codec,
    open_store,
)
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.memory_plan import GIB
from qwen3_tts_engine.voice import Voice
from scripts.synthetic.configs import ModelType
from tests.conftest import CheckpointOf

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


def config_of(checkpoint: Path, **settings: object) -> EngineConfig:
    return EngineConfig.model_validate({"checkpoint": str(checkpoint), "max_streams": 2, **settings})


def test_rejects_a_missing_gpu_or_an_old_driver(monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path) -> None:
    def fail() -> None:
        raise RuntimeError("The NVIDIA driver on your system is too old (found version 11040).\nPlease update")

    monkeypatch.setattr(torch.cuda, "init", fail)
    expected = r"device: cuda:1: PyTorch sees no CUDA device: The NVIDIA driver .* too old \(found version 11040\)\.$"
    with pytest.raises(ConfigError, match=expected):
        choose_device(config_of(tiny_checkpoint, device="cuda:1"), "cpu")


def test_rejects_a_gpu_without_bfloat16(monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path) -> None:
    monkeypatch.setattr(torch.cuda, "init", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    message = "device: Tesla T4 has compute capability 7.5, bfloat16 requires 8.0 or later: use another GPU"
    with pytest.raises(ConfigError, match=re.escape(message)):
        choose_device(config_of(tiny_checkpoint), "cuda:0")


def test_rejects_more_than_one_talker() -> None:
    one = {"kind": "KIND_GPU", "count": 1, "gpus": [1]}
    check_instances([one])
    check_instances([{"kind": "KIND_CPU", "count": 1, "gpus": []}])
    for several in ([one | {"gpus": [0, 1]}], [one, one], [one | {"count": 2}]):
        with pytest.raises(ConfigError, match="instance_group: 2 instances"):
            check_instances(several)


def test_rejects_a_connection_string_among_the_parameters_without_quoting_it() -> None:
    """Triton shows parameters to every caller."""
    given = {"checkpoint": "any", "voices_dsn": "postgresql://me:secret@host/voices"}
    with pytest.raises(ConfigError, match="voices_dsn: every caller can read a parameter: set QWEN3_TTS_VOICES_DSN"):
        EngineConfig.from_parameters(given, {})
    config = EngineConfig.from_parameters({"checkpoint": "any"}, {"QWEN3_TTS_VOICES_DSN": given["voices_dsn"]})
    assert config.voices_dsn is not None
    assert config.voices_dsn.get_secret_value() == given["voices_dsn"]
    assert "secret" not in f"{config} {config!r} {config.model_dump_json()}"
    with pytest.raises(ConfigError, match=r"^checkpoint: Field required$"):
        EngineConfig.from_parameters({}, {"QWEN3_TTS_VOICES_DSN": given["voices_dsn"]})


def test_rejects_a_database_of_voices_without_its_client(
    monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path
) -> None:
    monkeypatch.delitem(sys.modules, "qwen3_tts_engine.voices.postgres_store", raising=False)
    monkeypatch.delitem(sys.modules, "qwen3_tts_engine.voices.database", raising=False)
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ConfigError, match=r"voices_dsn: .*psycopg.*: install 'psycopg\[binary\]', the extra postgres"):
        open_store(config_of(tiny_checkpoint, voices_dsn="host=/tmp"))


def test_rejects_a_cache_too_small_for_one_stream(tiny_checkpoint: Path) -> None:
    config = config_of(tiny_checkpoint, kv_cache_gib=1e-4)
    with pytest.raises(
        ConfigError, match=r"kv_cache_gib: 0.00 GiB hold \d+ positions, one stream may require \d+: raise it"
    ):
        load_runner(Checkpoint.open(config.checkpoint), config, CPU)


def test_rejects_batch_invariance_without_kernels(tiny_checkpoint: Path) -> None:
    config = config_of(tiny_checkpoint, batch_invariant=True, kernels="off")
    with pytest.raises(ConfigError, match="batch_invariant"):
        load_runner(Checkpoint.open(config.checkpoint), config, CUDA)


def test_auto_is_the_number_of_streams_that_fit_into_the_free_memory(
    monkeypatch: pytest.MonkeyPatch, tiny_checkpoint: Path, tiny_code2wav: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    # compose gives variables that are not set as empty ones.
    monkeypatch.setenv("QWEN3_TTS_GPU_MEMORY_SHARE", "")
    checkpoint, auto = Checkpoint.open(str(tiny_checkpoint)), EngineConfig(checkpoint="any", gpu_memory_share=0.5)

    def fit(config: EngineConfig, free_gib: float) -> EngineConfig:
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free_gib * 2**30), 8 << 30))
        return fit_memory(config, checkpoint, tiny_code2wav, CUDA)

    found = [fit(auto, free) for free in (0.5, 0.6, 8.0)]
    streams = [config.max_streams for config in found]
    assert streams == sorted(set(streams))
    assert not any(config.has_auto_streams for config in found)
    assert re.search(r"GPU memory: 0\.5 of 8\.0 GiB free; weights 0\.0, cache \d", caplog.text)
    assert fit(auto.model_copy(update={"max_streams": 3}), 8.0).max_streams == 3
    with pytest.raises(
        ConfigError, match=r"max_streams: \d\.\d GiB are required for 300 streams, 0\.5 are free: at most"
    ):
        fit(auto.model_copy(update={"max_streams": 300}), 0.5)


def test_auto_is_256_streams_on_a_cpu(tiny_checkpoint: Path, tmp_path: Path) -> None:
    for settings in ({}, {"max_streams": "auto"}):
        config = EngineConfig.from_parameters({"checkpoint": "any"} | settings, {})
        assert config.has_auto_streams
        assert config.max_requests == 256 + 256, "for the process that Triton calls, which does not know the GPU"
        assert fit_memory(config, Checkpoint.open(str(tiny_checkpoint)), tmp_path, CPU).max_streams == 256


def test_auto_overrides_a_number(tiny_checkpoint: Path) -> None:
    given = {"checkpoint": "any", "max_streams": "7"}
    assert not EngineConfig.from_parameters(given, {}).has_auto_streams
    assert EngineConfig.from_parameters(given, {"QWEN3_TTS_MAX_STREAMS": "auto"}).has_auto_streams
    with pytest.raises(ConfigError, match="max_streams: 'most': Input should be a valid integer"):
        EngineConfig.from_parameters(given, {"QWEN3_TTS_MAX_STREAMS": "most"})


@pytest.mark.parametrize("frames", [0, 3, 12, 32])
def test_rejects_an_unverified_chunk_length(frames: int) -> None:
    with pytest.raises(ConfigError, match=f"max_chunk_frames: '{frames}': Value error, must be one of 1, 2, 4, 8, 16"):
        EngineConfig.from_parameters({"checkpoint": "any", "max_chunk_frames": str(frames)}, {})


def test_rejects_a_codec_not_verified_for_the_longest_chunk(
    tiny_checkpoint: Path, tiny_code2wav: Path, tmp_path: Path
) -> None:
    folder, checkpoint = tmp_path / "code2wav" / "1", Checkpoint.open(str(tiny_checkpoint))
    folder.mkdir(parents=True)
    manifest = CodecManifest.read(tiny_code2wav / "code2wav" / "1")
    manifest.model_copy(update={"chunk_frames": [1, 2, 4, 8]}).write(folder)
    message = (
        f"{folder / 'model.json'}: chunk_frames is [1, 2, 4, 8], max_chunk_frames 16 requires [1, 2, 4, 8, 16]: run"
    )
    with pytest.raises(CheckpointError, match=re.escape(message)):
        check_codec(checkpoint, config_of(tiny_checkpoint), tmp_path, CPU)
    check_codec(checkpoint, config_of(tiny_checkpoint, max_chunk_frames=8), tmp_path, CPU)


@pytest.mark.parametrize(("form", "opens_line"), [("python", True), ("onnx", True), ("tensorrt", False)])
def test_the_form_decides_how_the_codec_is_called(
    form: str, opens_line: bool, checkpoint_of: CheckpointOf, tiny_code2wav: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (GIB, 24 * GIB))
    checkpoint = Checkpoint.open(str(checkpoint_of("base")))
    manifest = CodecManifest.read(tiny_code2wav / "code2wav" / "1").model_copy(update={"form": form})
    calls: list[ModelCall] = []

    def call_model(call: ModelCall) -> list[np.ndarray]:
        calls.append(call)
        assert call.outputs == [PCM]
        rows, frames, _ = call.inputs[CODES].shape
        return [np.zeros((rows, frames * 1920), np.int16)]

    config = config_of(checkpoint.folder, voice_cache_mib=1)
    codec = open_codec(checkpoint, config, manifest, CPU, "talker", call_model, lambda model: nullcontext())
    codec.claim()
    codec.prime(Voice(np.zeros(4, np.float32), np.zeros((3, 16), np.int32), "said"))
    assert {call.model for call in calls} == {"code2wav"}
    assert all(set(call.inputs) == {CODES, PLACES} for call in calls)
    assert all((LINE in call.parameters) == opens_line for call in calls)


def test_only_a_base_checkpoint_has_rows_for_voices(checkpoint_of: CheckpointOf, tiny_code2wav: Path) -> None:
    manifest = CodecManifest.read(tiny_code2wav / "code2wav" / "1")

    def rows(model_type: ModelType, **settings: object) -> int:
        checkpoint = Checkpoint.open(str(checkpoint_of(model_type)))
        config = config_of(checkpoint.folder, **settings)
        return open_codec(checkpoint, config, manifest, CPU, "talker", unanswered, lambda _: nullcontext()).num_voices

    assert rows("custom_voice") == 0
    assert rows("base", voice_cache_mib=8) == (8 << 20) // (manifest.state_size * 4)


def unanswered(call: ModelCall) -> list[np.ndarray]:
    raise AssertionError
