"""scripts.server.add_model adds a model for another checkpoint, which shares the code of the main one."""

import shutil
from pathlib import Path

import pytest
import typer
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2
from typer.testing import CliRunner

import scripts.server.add_model as command
from qwen3_tts_engine.checkpoint.manifest import CodecManifest, EncoderManifest
from qwen3_tts_engine.config import ConfigError, EngineConfig
from scripts.server.add_model import AddModelError, add_model
from tests.conftest import CheckpointOf

ROOT = Path(__file__).parents[3]


@pytest.fixture
def repository(tmp_path: Path, tiny_code2wav: Path) -> Path:
    folder = tmp_path / "models"
    shutil.copytree(ROOT / "model_repository" / "qwen3_tts", folder / "qwen3_tts")
    shutil.copytree(tiny_code2wav / "code2wav", folder / "code2wav")
    return folder


def parse(path: Path) -> model_config_pb2.ModelConfig:
    return text_format.Parse(path.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())


def test_only_name_and_checkpoint_differ(repository: Path, checkpoint_of: CheckpointOf) -> None:
    design = str(checkpoint_of("voice_design"))
    folder = add_model("design", design, repository)
    config, main = parse(folder / "config.pbtxt"), parse(repository / "qwen3_tts" / "config.pbtxt")
    assert (config.name, config.parameters["checkpoint"].string_value) == ("design", design)
    config.name, config.parameters["checkpoint"].string_value = main.name, main.parameters["checkpoint"].string_value
    assert config == main
    assert (folder / "1" / "model.py").samefile(repository / "qwen3_tts" / "1" / "model.py")
    assert [p.name for p in repository.iterdir() if p.name.startswith(".")] == []


def test_the_link_survives_a_move_of_the_repository(
    repository: Path, checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    add_model("design", str(checkpoint_of("voice_design")), repository)
    repository.rename(tmp_path / "elsewhere")
    assert (tmp_path / "elsewhere" / "design" / "1" / "model.py").is_file()


def test_copies_the_code_instead_of_linking_on_request(repository: Path, checkpoint_of: CheckpointOf) -> None:
    folder = add_model("design", str(checkpoint_of("voice_design")), repository, copy=True)
    assert not (folder / "1").is_symlink()
    assert (folder / "1" / "qwen3_tts_engine" / "service.py").is_file()


def test_refuses_a_checkpoint_with_another_codec(repository: Path, checkpoint_of: CheckpointOf) -> None:
    folder = repository / "code2wav" / "1"
    CodecManifest.read(folder).model_copy(update={"codec_digest": "0" * 64}).write(folder)
    with pytest.raises(AddModelError, match=r"another codec than the one in .* requires a model repository"):
        add_model("design", str(checkpoint_of("voice_design")), repository)
    assert not (repository / "design").exists()


def speaker_encoder_of(folder: Path) -> str:
    return str(parse(folder / "config.pbtxt").parameters["speaker_encoder"].string_value)


def test_selects_the_speaker_encoder_of_a_base_checkpoint(
    tiny_base_models: Path, repository: Path, checkpoint_of: CheckpointOf
) -> None:
    base = str(checkpoint_of("base"))
    shutil.copytree(tiny_base_models / "speaker_encoder", repository / "speaker_encoder")
    assert speaker_encoder_of(add_model("first", base, repository)) == "speaker_encoder"
    (repository / "speaker_encoder").rename(repository / "of_anna")
    assert speaker_encoder_of(add_model("second", base, repository)) == "of_anna"
    main = repository / "qwen3_tts" / "config.pbtxt"
    text = main.read_text() + 'parameters { key: "speaker_encoder" value { string_value: "of_bert" } }\n'
    main.write_text(text)
    assert speaker_encoder_of(add_model("third", base, repository)) == "of_anna"
    assert parse(main).parameters["speaker_encoder"].string_value == "of_bert"


def test_names_a_speaker_encoder_that_is_not_exported(
    tiny_base_models: Path, repository: Path, checkpoint_of: CheckpointOf, capsys: pytest.CaptureFixture[str]
) -> None:
    base = str(checkpoint_of("base"))
    assert speaker_encoder_of(add_model("first", base, repository)) == "speaker_encoder"
    shutil.copytree(tiny_base_models / "speaker_encoder", repository / "speaker_encoder")
    folder = repository / "speaker_encoder" / "1"
    EncoderManifest.read(folder).model_copy(update={"digest": "another"}).write(folder)
    assert speaker_encoder_of(add_model("second", base, repository)) == "second_speaker_encoder"
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.endswith(f"python -m export --checkpoint {base} --speaker-encoder second_speaker_encoder")


@pytest.mark.parametrize(
    ("name", "checkpoint", "message"),
    [
        ("qwen3_tts", None, "already exists"),
        ("a/b", None, "a model's name has letters"),
        ("..", None, "a model's name has letters"),
        ("design", "/nowhere", "/nowhere"),
    ],
)
def test_reports_invalid_names_and_checkpoints(
    repository: Path, checkpoint_of: CheckpointOf, name: str, checkpoint: str | None, message: str
) -> None:
    arguments = [name, "--checkpoint", checkpoint or str(checkpoint_of("base")), "--model-repository", str(repository)]
    app = typer.Typer()
    app.command()(command.main)
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 1
    assert message in done.output
    assert sorted(p.name for p in repository.iterdir()) == ["code2wav", "qwen3_tts"]


def test_each_model_reads_its_own_environment_variables() -> None:
    environment = {
        "QWEN3_TTS_CHECKPOINT": "main",
        "QWEN3_TTS_MAX_STREAMS": "7",
        "QWEN3_TTS_MAX_WAITING": "8",
        "MY_DESIGN_MAX_WAITING": "9",
    }
    settings = {"checkpoint": "given"}
    main = EngineConfig.from_parameters(settings, environment)
    design = EngineConfig.from_parameters(settings, environment, "my-design")
    assert (main.checkpoint, main.max_streams, main.max_waiting) == ("main", 7, 8)
    assert (design.checkpoint, design.max_streams, design.max_waiting) == ("given", 7, 9)
    own = EngineConfig.from_parameters(settings, environment | {"MY_DESIGN_CHECKPOINT": "own"}, "my-design")
    assert own.checkpoint == "own"
    encoder = {"QWEN3_TTS_SPEAKER_ENCODER": "main"}
    assert EngineConfig.from_parameters(settings, encoder).speaker_encoder == "main"
    assert EngineConfig.from_parameters(settings, encoder, "my-design").speaker_encoder == "speaker_encoder"
    with pytest.raises(ConfigError, match="max_waiting"):
        EngineConfig.from_parameters(settings, {"MY_DESIGN_MAX_WAITING": "none"}, "my-design")
