"""A server with an invalid checkpoint, codec or setting exits and logs the cause."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.manifest import CODEC_CONTRACT, CodecManifest, EngineFacts
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, state_size
from qwen3_tts_engine.config import ENVIRONMENT_PREFIX
from scripts.server.installation import ServerError
from tests.e2e.serving import copy_repository, serve

TALKER_ONLY = ("--model-control-mode=explicit", "--load-model=qwen3_tts")


def vocabulary_missing(checkpoint: Path, codec: Path) -> str:
    (checkpoint / "vocab.json").unlink()
    return f"{checkpoint / 'vocab.json'}: missing from the checkpoint"


def config_with_other_size(checkpoint: Path, codec: Path) -> str:
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    config["talker_config"]["intermediate_size"] *= 2
    path.write_text(json.dumps(config))
    return f"{checkpoint / 'model.safetensors'}: tensor talker.model.layers.0.mlp.gate_proj.weight has shape"


def tensor_with_other_shape(checkpoint: Path, codec: Path) -> str:
    path = checkpoint / "model.safetensors"
    tensors = load_file(path)
    tensors["talker.codec_head.weight"] = torch.zeros(3, 3)
    save_file(tensors, path)
    return f"{path}: tensor talker.codec_head.weight has shape [3, 3], config.json says [3072"


def config_field_missing(checkpoint: Path, codec: Path) -> str:
    path = checkpoint / "config.json"
    config = json.loads(path.read_text())
    del config["talker_config"]["codec_bos_id"]
    path.write_text(json.dumps(config))
    return f"{path}: talker_config.codec_bos_id: Field required"


def other_state_size(checkpoint: Path, codec: Path) -> str:
    manifest = CodecManifest.read(codec)
    manifest.model_copy(update={"state_size": 1298496}).write(codec)
    return f"{codec / 'model.json'}: state_size is 1298496, {checkpoint} has "


def other_codec_digest(checkpoint: Path, codec: Path) -> str:
    CodecManifest.read(codec).model_copy(update={"codec_digest": "0" * 64}).write(codec)
    return f"{codec / 'model.json'}: codec_digest is 000"


def codec_manifest_missing(checkpoint: Path, codec: Path) -> str:
    (codec / "model.json").unlink()
    return f"{codec / 'model.json'}: missing"


def manifest_of_an_older_export(checkpoint: Path, codec: Path) -> str:
    path = codec / "model.json"
    manifest = json.loads(path.read_text())
    del manifest["chunk_frames"]
    path.write_text(json.dumps(manifest))
    return f"{path}: chunk_frames: Field required; run `python -m export` again"


def codec_of_an_older_contract(checkpoint: Path, codec: Path) -> str:
    path = codec / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"contract": 1}))
    return f"{path}: contract: Input should be greater than or equal to {CODEC_CONTRACT}; run `python -m export` again"


def other_chunk_lengths(checkpoint: Path, codec: Path) -> str:
    CodecManifest.read(codec).model_copy(update={"chunk_frames": [1, 2, 4, 8]}).write(codec)
    return (
        f"{codec / 'model.json'}: chunk_frames is [1, 2, 4, 8], max_chunk_frames 16 requires [1, 2, 4, 8, 16]: run "
        "`python -m export` again, or lower max_chunk_frames"
    )


def tensorrt_plan_on_cpu(checkpoint: Path, codec: Path) -> str:
    engine = EngineFacts(
        library="tensorrt", version="10.14.1.48", gpu="NVIDIA H200", compute_capability="9.0", strongly_typed=True,
        level=3, layers=1, size=1, build_seconds=1, plugin=False, profiles=[{}],
    )  # fmt: skip
    CodecManifest.read(codec).model_copy(update={"form": "tensorrt", "engine": engine}).write(codec)
    (codec / "model.plan").touch()
    return f"{codec / 'model.json'}: form is tensorrt, which requires a CUDA device, this model runs on cpu"


@pytest.mark.long
@pytest.mark.parametrize(
    "corrupt",
    [
        vocabulary_missing,
        config_with_other_size,
        tensor_with_other_shape,
        config_field_missing,
        other_state_size,
        other_codec_digest,
        codec_manifest_missing,
        manifest_of_an_older_export,
        codec_of_an_older_contract,
        other_chunk_lengths,
        tensorrt_plan_on_cpu,
    ],
    ids=lambda corrupt: corrupt.__name__,
)
def test_log_names_the_invalid_file(
    corrupt: Callable[[Path, Path], str], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    repository = copy_repository(tmp_path / "model_repository", fakes=False)
    checkpoint = shutil.copytree(tiny_checkpoint, tmp_path / "checkpoint")
    codec = repository / "code2wav" / "1"
    write_manifest(checkpoint, codec)
    message = corrupt(checkpoint, codec)
    # No codec is loaded to compare with golden cases.
    environment = {"QWEN3_TTS_CHECKPOINT": str(checkpoint), "QWEN3_TTS_CODEC_PROOF_SECONDS": "0"}
    with (
        pytest.raises(ServerError, match="ended with exit code 1"),
        serve(repository, tmp_path / "server", environment, TALKER_ONLY),
    ):
        pass
    assert message in (tmp_path / "server" / "server.log").read_text()


@pytest.mark.long
def test_invalid_setting_prevents_start(scripted_repository: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    environment = {"QWEN3_TTS_CHECKPOINT": str(tiny_checkpoint), "QWEN3_TTS_MAX_STREAMS": "none"}
    with pytest.raises(ServerError), serve(scripted_repository, tmp_path, environment, TALKER_ONLY):
        pass
    assert "max_streams: 'none': Input should be a valid integer" in (tmp_path / "server.log").read_text()


def test_log_names_a_misspelled_variable(scripted_repository: Path, tmp_path: Path) -> None:
    misspelled = f"{ENVIRONMENT_PREFIX}MAX_STREMS"
    environment = {"QWEN3_TTS_CHECKPOINT": str(tmp_path / "none"), misspelled: "8"}
    with pytest.raises(ServerError), serve(scripted_repository, tmp_path, environment, TALKER_ONLY):
        pass
    log = (tmp_path / "server.log").read_text()
    assert f"{misspelled} is no setting; did you mean QWEN3_TTS_MAX_STREAMS?" in log
    assert log.count("is no setting") == 1


@pytest.mark.long
def test_two_talker_instances_prevent_start(tiny_checkpoint: Path, tmp_path: Path) -> None:
    repository = copy_repository(tmp_path / "model_repository", fakes=True)
    config = repository / "qwen3_tts" / "config.pbtxt"
    config.write_text(config.read_text().replace("count: 1", "count: 2"))
    environment = {"QWEN3_TTS_CHECKPOINT": str(tiny_checkpoint)}
    with pytest.raises(ServerError), serve(repository, tmp_path, environment, TALKER_ONLY):
        pass
    assert "instance_group: 2 instances, only one is allowed" in (tmp_path / "server.log").read_text()


def write_manifest(checkpoint: Path, folder: Path) -> None:
    """Writes model.json as the exporter does for this checkpoint's codec."""
    opened = Checkpoint.open(str(checkpoint))
    CodecManifest(
        form="onnx", state_size=state_size(opened.speech_tokenizer.decoder_config), state_dtype="FP32",
        codec_digest=opened.codec_digest, chunk_frames=[*CHUNK_FRAMES], sample_rate=24000, contract=CODEC_CONTRACT,
        opset=18, torch="", onnx="", commit=None,
    ).write(folder)  # fmt: skip
