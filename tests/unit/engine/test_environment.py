"""Misspelled settings: parameters are refused, environment variables are named in the log."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from qwen3_tts_engine import environment
from qwen3_tts_engine.arguments import read_config
from qwen3_tts_engine.config import CODEC_SETTINGS, ConfigError, EngineConfig
from qwen3_tts_engine.environment import OTHER_VARIABLES, known_variables, unknown_variables
from qwen3_tts_engine.startup import warn_of_unknown_variables

ROOT = Path(__file__).parents[3]
CONFIG = ROOT / "model_repository" / "qwen3_tts" / "config.pbtxt"
# Not tests/unit, which gives names that do not exist.
FOLDERS = ("model_repository", "client", "scripts", "export", "docker", "tests/e2e", "tests/fakes", "tests/gpu")
SUFFIXES = {".py", ".sh", ".h", ".cpp", ".cu", ".cuh", ".pbtxt", ".yaml", ".tpl", ""}
VARIABLE = re.compile(r"\bQWEN3_TTS_[A-Z0-9_]*[A-Z0-9]\b")


def variables_of(folder: Path) -> Iterator[str]:
    """Names in the sources of a folder, but not in the list itself."""
    for path in folder.rglob("*"):
        if path.suffix in SUFFIXES and path.is_file() and path != Path(environment.__file__):
            yield from VARIABLE.findall(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def named() -> set[str]:
    return {name for folder in FOLDERS for name in variables_of(ROOT / folder)}


def test_every_variable_of_the_sources_is_known(named: set[str]) -> None:
    assert len(named) > 20
    assert not list(unknown_variables(named))


def test_every_listed_variable_is_in_the_sources(named: set[str]) -> None:
    assert OTHER_VARIABLES.keys() <= named
    settings = known_variables() - OTHER_VARIABLES.keys()
    assert len(settings) == len(EngineConfig.model_fields), "a setting is listed twice"


def test_a_new_variable_of_a_source_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "serve.sh").write_text('echo "${QWEN3_TTS_PORT:-8001} $QWEN3_TTS_MPS" # QWEN3_TTS_<SETTING>')
    (tmp_path / "fleet.py").write_text('FLEET = "QWEN3_TTS_FLEET"\nname = f"QWEN3_TTS_{FLEET}"')
    found = set(variables_of(tmp_path))
    assert found == {"QWEN3_TTS_PORT", "QWEN3_TTS_MPS", "QWEN3_TTS_FLEET"}
    assert [message.split()[0] for message in unknown_variables(found)] == ["QWEN3_TTS_FLEET", "QWEN3_TTS_PORT"]


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("QWEN3_TTS_MAX_STREMS", "did you mean QWEN3_TTS_MAX_STREAMS?"),
        ("QWEN3_TTS_STREAMS", "did you mean QWEN3_TTS_MAX_STREAMS?"),
        ("QWEN3_TTS_KERNEL", "did you mean QWEN3_TTS_KERNELS?"),
        ("QWEN3_TTS_kernels", "did you mean QWEN3_TTS_KERNELS?"),
        ("QWEN3_TTS_GATEWAY_KEY", "did you mean QWEN3_TTS_GATEWAY_KEYS?"),
        ("QWEN3_TTS_DESIGN_MAX_STREMS", "did you mean QWEN3_TTS_DESIGN_MAX_STREAMS?"),
        ("QWEN3_TTS_OTHER_MAX_STREAMS", "did you mean QWEN3_TTS_MAX_STREAMS?"),
        ("QWEN3_TTS_VOLUME", "docs/configuration.md lists all"),
    ],
)
def test_an_unknown_variable_is_named_with_the_nearest_one(name: str, nearest: str) -> None:
    known = ["PATH", "QWEN3_TTS_MAX_STREAMS", "QWEN3_TTS_ADMIN_KEY", "QWEN3_TTS_DESIGN_CHECKPOINT", "MY_MAX_STREMS"]
    assert list(unknown_variables([*known, name], ["qwen3_tts_design", "my"])) == [f"{name} is no setting; {nearest}"]


def test_the_log_names_unknown_variables_without_their_values(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    (tmp_path / "qwen3_tts_design").mkdir()
    (tmp_path / "qwen3_tts_design" / "config.pbtxt").touch()
    # A file that is no model.
    (tmp_path / "qwen3_tts_other").touch()
    monkeypatch.setattr("os.environ", {
        "QWEN3_TTS_VOICE_DSN": "postgresql://s3cret",
        "QWEN3_TTS_DESIGN_MAX_STREAMS": "8",
        "QWEN3_TTS_OTHER_VOICES_FOLDER": "/voices",
    })  # fmt: skip
    warn_of_unknown_variables(tmp_path)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "QWEN3_TTS_OTHER_VOICES_FOLDER is no setting; did you mean QWEN3_TTS_VOICES_FOLDER?"),
        ("WARNING", "QWEN3_TTS_VOICE_DSN is no setting; did you mean QWEN3_TTS_VOICES_DSN?"),
    ]


def arguments(**parameters: str) -> dict[str, str]:
    """Arguments of Triton's `initialize`, for the repository's config.pbtxt with more parameters."""
    config = text_format.Parse(CONFIG.read_text(encoding="utf-8"), model_config_pb2.ModelConfig())
    given = {name: parameter.string_value for name, parameter in config.parameters.items()} | parameters
    values = {name: {"string_value": value} for name, value in given.items()}
    return {"model_config": json.dumps({"instance_group": [], "parameters": values}), "model_name": "qwen3_tts"}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("max_strems", "config.pbtxt: max_strems is no setting; did you mean max_streams?"),
        ("MAX_STREAMS", "config.pbtxt: MAX_STREAMS is no setting; did you mean max_streams?"),
        ("QWEN3_TTS_MAX_STREAMS", "config.pbtxt: QWEN3_TTS_MAX_STREAMS is no setting; did you mean max_streams?"),
        ("executor", "config.pbtxt: executor is no setting; docs/configuration.md lists all"),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_nearest_setting(name: str, message: str) -> None:
    assert read_config(arguments(max_streams="8")).max_streams == 8
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        read_config(arguments(**{name: "8"}))


@pytest.mark.parametrize(
    ("name", "value"), [("kernels", "off"), ("kernel_path", "general"), ("gpu_memory_share", "0.5")]
)
def test_a_setting_of_both_models_is_refused_as_a_parameter(name: str, value: str) -> None:
    variable = f"QWEN3_TTS_{name.upper()}"
    message = f"{name}: code2wav does not see this parameter: set {variable} in the environment, which both models read"
    for environ in ({}, {variable: value}):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
            EngineConfig.from_parameters({"checkpoint": "any", name: value}, environ)
    config = EngineConfig.from_parameters({"checkpoint": "any", name: ""}, {variable: value})
    assert str(getattr(config, name)) == value


def test_settings_that_code2wav_reads_are_those_of_both_models() -> None:
    read = {*variables_of(ROOT / "model_repository" / "code2wav"), *variables_of(ROOT / "export" / "plugin")}
    assert {f"QWEN3_TTS_{name.upper()}" for name in CODEC_SETTINGS} == read - OTHER_VARIABLES.keys()
