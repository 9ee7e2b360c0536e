"""Settings from a file and from flags; every mistake is one line."""

import argparse
import socket
from pathlib import Path
from typing import get_args

import pytest
from openai.types.audio import speech_create_params

from qwen3_tts_client.__main__ import main
from qwen3_tts_client.checkpoints import SPEAKERS
from qwen3_tts_client.errors import ClientError, ExitCode
from qwen3_tts_gateway.command import add_options
from qwen3_tts_gateway.config import VOICE_ALIASES, Settings, load
from scripts.synthetic.configs import SPEAKERS as RELEASED_SPEAKERS

OPENAI_VOICES = sorted(get_args(get_args(speech_create_params.Voice)[1]))


def test_flags_override_the_file(tmp_path: Path) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text('port = 1\nservers = ["a:1", "b:2"]\n[voice_aliases]\nalloy = "anna"\n')
    settings = load(file, {"port": 2, "host": None})
    assert (settings.port, settings.servers, settings.voice_aliases) == (2, ("a:1", "b:2"), {"alloy": "anna"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 1", "setting prot: extra inputs are not permitted: 1"),
        ("port = 70000", "setting port: input should be less than or equal to 65535: 70000"),
        ("servers = []", "setting servers: tuple should have at least 1 item"),
        ('cloning = "maybe"', "setting cloning: input should be 'on', 'consent' or 'off': 'maybe'"),
        (
            'trusted_proxies = ["proxy"]',
            "setting trusted_proxies.0: value is not a valid ipv4 or ipv6 network: 'proxy'",
        ),
        ("port", "Expected '=' after a key"),
    ],
)
def test_a_wrong_setting_is_named_in_one_line(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "gateway.toml"
    file.write_text(text)
    with pytest.raises(ClientError) as raised:
        load(file, {})
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ClientError, match=r"/none\.toml: No such file or directory"):
        load(Path("/none.toml"), {})


def test_every_flag_is_a_setting() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    flags = set(vars(parser.parse_args([]))) - {"config", "new_key"}
    assert flags <= set(Settings.model_fields)


def test_openais_voices_are_speakers_of_the_released_checkpoints() -> None:
    assert sorted(VOICE_ALIASES) == OPENAI_VOICES
    assert set(VOICE_ALIASES.values()) <= set(SPEAKERS) == set(RELEASED_SPEAKERS)


def test_an_exposed_address_without_keys_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "--host", "0.0.0.0", "--port", "0"]) == ExitCode.USAGE
    [line] = capsys.readouterr().err.splitlines()
    assert "pass --no-auth" in line


def test_a_port_in_use_ends_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["gateway", "--port", str(taken.getsockname()[1])]) == ExitCode.SERVER
    assert "Address already in use" in capsys.readouterr().err


def test_new_key_prints_the_key_and_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["gateway", "--new-key", "anna"]) == ExitCode.OK
    key, line = capsys.readouterr().out.splitlines()
    assert (key[:3], line.split()[0]) == ("sk-", "anna")
