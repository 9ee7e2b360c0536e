"""`voices` against a stub server."""

import subprocess
import sys

import pytest

from qwen3_tts_client.__main__ import main
from qwen3_tts_client.errors import ExitCode
from tests.fakes.stub_server import StubServer
from tests.subprocesses import same_imports

ANNA = {"name": "anna", "ref_text": "What I say.", "reference_seconds": 3.5, "x_vector_only": False}


def list_voices(stub: StubServer) -> int:
    return main(["voices", "list", "--url", stub.url])


def test_list_prints_the_speakers_that_the_checkpoint_has(capsys: pytest.CaptureFixture[str]) -> None:
    with StubServer() as stub:
        stub.servicer.speakers = ["MyVoice", "ryan"]
        assert list_voices(stub) == ExitCode.OK
    assert capsys.readouterr().out == "MyVoice\nryan\n"


def test_list_prints_the_voices_of_a_base_checkpoint(capsys: pytest.CaptureFixture[str]) -> None:
    with StubServer(voices={"anna": ANNA | {"created": "2026-11-23T00:00:00+00:00"}}) as stub:
        assert list_voices(stub) == ExitCode.OK
    assert capsys.readouterr().out == "anna\t3.50 s\t2026-11-23T00:00:00+00:00\t'What I say.'\n"


def test_list_says_how_a_voice_of_a_design_checkpoint_is_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    with StubServer(task="VoiceDesign") as stub:
        assert list_voices(stub) == ExitCode.REQUEST
    assert "a VoiceDesign checkpoint has no voices; describe one: qwen3-tts say --instruct" in capsys.readouterr().err


def test_a_name_that_is_not_text_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with StubServer(voices={}) as stub:
        assert main(["voices", "rm", "\udcff", "--url", stub.url]) == ExitCode.REQUEST
    assert "surrogates not allowed" in capsys.readouterr().err


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_full_device_is_reported(unbuffered: str) -> None:
    with StubServer() as stub, open("/dev/full", "wb") as full:
        command = [sys.executable, "-m", "qwen3_tts_client", "voices", "list", "--url", stub.url]
        environment = same_imports() | {"PYTHONUNBUFFERED": unbuffered}
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, env=environment, text=True, timeout=60)
    assert done.returncode == ExitCode.OUTPUT
    assert done.stderr.endswith("output: No space left on device\n")
    assert len(done.stderr.splitlines()) == 1
