"""`say` against a stub server with scripted responses."""

import json
import os
import signal
import subprocess
import sys
import time
import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from qwen3_tts_client.__main__ import main
from qwen3_tts_client.errors import ExitCode
from qwen3_tts_client.long_text import PARAGRAPH_PAUSE
from tests.fakes.stub_server import StubServer, text_of
from tests.fakes.word_server import WORD_SAMPLES, WordServer

ROOT = Path(__file__).parents[2]
SAY = (sys.executable, "-m", "qwen3_tts_client", "say")


@pytest.fixture(scope="module")
def stub() -> Iterator[StubServer]:
    with StubServer(frames=5) as server:
        yield server


def script(**fields: object) -> str:
    return json.dumps(fields)


def say(stub: StubServer, *arguments: str) -> int:
    return main(["say", "--url", stub.url, *arguments])


def figure(line: str, name: str) -> float:
    return float(line.split(f"{name} ")[1].split()[0])


def test_say_writes_a_wav_and_prints_latency_and_underruns(
    stub: StubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "hello.wav"
    text = script(chunks=[[50, 1], [300, 2], [305, 1]], silence_ms=100)
    assert say(stub, text, "--output", str(file), "--speaker", "vivian", "--seed", "7") == ExitCode.OK
    with wave.open(str(file)) as speech:
        assert (speech.getframerate(), speech.getnframes(), speech.getnchannels()) == (24_000, 4 * 1920, 1)
    request = stub.servicer.received[-1]
    assert {tensor.name for tensor in request.inputs} == {"text", "speaker", "seed"}
    line = capsys.readouterr().err
    # The stub never sends early; its delay depends on the machine.
    assert 50 <= figure(line, "· TTFA") < 250
    # The onset is 10 ms into the second chunk, which arrives 170 ms late.
    assert 310 <= figure(line, "audible TTFA") < 550
    assert "underruns 1 (" in line


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_local_servers_are_reached_without_the_proxy(stub: StubServer, host: str, tmp_path: Path) -> None:
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "HTTPS_PROXY", "grpc_proxy"), "http://127.0.0.1:9")
    url = f"{host}:{stub.url.rpartition(':')[2]}"
    command = [*SAY, "--url", url, "Hello.", "--speaker", "ryan", "--output", str(tmp_path / "hello.wav")]
    subprocess.run(command, env=os.environ | proxies, check=True, timeout=60)


def test_output_dash_writes_raw_pcm_to_standard_output(stub: StubServer) -> None:
    command = [*SAY, "-u", stub.url, script(chunks=[[0, 2]]), "--output", "-"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, check=True, timeout=60)
    pcm = np.frombuffer(done.stdout, "<i2")
    assert len(pcm) == 2 * 1920
    assert set(np.abs(pcm)) == {8000}


def test_standard_input_is_sent_piece_by_piece(stub: StubServer, tmp_path: Path) -> None:
    command = [*SAY, "-u", stub.url, "-", "--output", str(tmp_path / "a.wav")]
    before = len(stub.servicer.received)
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        for count, piece in enumerate(["Good ", "morning."], 1):
            process.stdin.write(piece.encode())
            process.stdin.flush()
            wait_for(lambda expected=before + count: len(stub.servicer.received) == expected)
        process.stdin.close()
        assert process.wait(30) == 0
    requests = stub.servicer.received[before:]
    assert [text_of(request) for request in requests] == ["Good ", "morning.", ""]
    parameters = [request.parameters for request in requests]
    assert [(p["sequence_start"].bool_param, p["sequence_end"].bool_param) for p in parameters] == [
        (True, False),
        (False, False),
        (False, True),
    ]
    assert len({p["sequence_id"].int64_param for p in parameters}) == 1


def test_ctrl_c_cancels_the_stream(stub: StubServer, tmp_path: Path) -> None:
    command = [*SAY, "-u", stub.url, script(chunks=[[0, 1]], hang=True)]
    cancelled, received = stub.servicer.cancelled, len(stub.servicer.received)
    with subprocess.Popen(
        command, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT / "client")}, stderr=subprocess.PIPE, text=True
    ) as process:
        wait_for(lambda: len(stub.servicer.received) > received and (tmp_path / "speech.wav").exists())
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == ExitCode.INTERRUPTED
        assert process.stderr is not None
        assert "interrupted" in process.stderr.read()
    wait_for(lambda: stub.servicer.cancelled == cancelled + 1)


@pytest.mark.parametrize(
    ("text", "flags", "code", "message"),
    [
        ({"chunks": [[0, 1]], "error": "speaker: 'x': unknown"}, [], ExitCode.REQUEST, "speaker: 'x': unknown"),
        ({"error": "UNAVAILABLE: full"}, [], ExitCode.REQUEST, "UNAVAILABLE: full"),
        ({"chunks": [[0, 1]], "hang": True}, ["--chunk-timeout", "0.5"], ExitCode.TIMEOUT, "no response for 0.5 s"),
        ({"chunks": [[0, 1]], "hang": True}, ["--stream-timeout", "0.5"], ExitCode.TIMEOUT, "DEADLINE_EXCEEDED"),
        ({"chunks": [[0, 1]], "close": True}, [], ExitCode.REQUEST, "without a final response"),
        ({}, [], ExitCode.REQUEST, "ended without audio"),
        ({}, ["--model-name", "none"], ExitCode.SERVER, "unknown model 'none'"),
        ({}, ["--url", "localhost:1"], ExitCode.SERVER, "localhost:1: "),
        ({}, ["--seed", str(2**63)], ExitCode.USAGE, "seed: 9223372036854775808 does not fit INT64"),
        ({}, ["--ref-audio", "/dev/null"], ExitCode.USAGE, "/dev/null: the file is empty: give a recording"),
        ({"chunks": [[0, 1]]}, ["--output", "/none/a.wav"], ExitCode.OUTPUT, "/none/a.wav: No such file or directory"),
        ({"chunks": [[0, 1]]}, ["--output", "/dev/full"], ExitCode.OUTPUT, "/dev/full: No space left on device"),
        ({}, ["--output", "b.mp3"], ExitCode.USAGE, "--output b.mp3: only WAV is written; name it b.wav, or pipe"),
        ({}, ["--text", "ho"], ExitCode.USAGE, "two texts, '{}' and --text 'ho': give one"),
    ],
)
def test_error_sets_exit_code_and_message(
    stub: StubServer,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    text: dict[str, object],
    flags: list[str],
    code: ExitCode,
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert say(stub, script(**text), *flags) == code
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("name", ["speech", "speech.WAV", "tmp.Xh3f", "/dev/null"])
def test_other_names_are_written_as_wav(
    stub: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert say(stub, "hi", "--output", name) == ExitCode.OK


def shell(stub: StubServer, arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `say` in bash, with `pipefail`; `arguments` may have redirections."""
    command = f"set -o pipefail; {' '.join(SAY)} --url {stub.url} {arguments}"
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, errors="replace", timeout=60
    )


@pytest.mark.parametrize(
    ("redirection", "message"),
    [
        ("> /dev/full", "qwen3-tts say: standard output: No space left on device"),
        (">&-", "qwen3-tts say: --output -: standard output is closed; give a file"),
    ],
)
def test_output_that_takes_nothing_is_named(stub: StubServer, redirection: str, message: str) -> None:
    done = shell(stub, f"hi --output - {redirection}")
    assert done.returncode == ExitCode.OUTPUT
    assert done.stderr.splitlines()[-1] == message
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_ends_it_as_sigpipe_would(stub: StubServer) -> None:
    done = shell(stub, "hi --output - | head --bytes 1000")
    assert (done.returncode, done.stderr) == (ExitCode.PIPE, "")


def test_a_sound_player_that_fails_is_named(
    stub: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "aplay").symlink_to("/bin/false")
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert say(stub, "hi", "--play") == ExitCode.OUTPUT
    assert "--play: aplay ended: its message is above" in capsys.readouterr().err


@pytest.mark.parametrize("is_newest", [False, True])
@pytest.mark.parametrize(
    ("ready", "flags", "message"),
    [
        (False, [], "model 'qwen3_tts' is not ready: it is starting, draining or dead"),
        (True, ["--model-name", "none"], "unknown model 'none'; give --model-name the name of a folder"),
    ],
)
def test_a_missing_or_unready_model_is_reported(
    capsys: pytest.CaptureFixture[str], is_newest: bool, ready: bool, flags: list[str], message: str
) -> None:
    """Both generations of servers answer so: without the admin key no caller may ask for their models."""
    with StubServer(ready=ready) as server:
        server.servicer.is_newest = is_newest
        assert say(server, "hello", *flags) == ExitCode.SERVER
    assert message in capsys.readouterr().err


def test_an_unknown_model_is_reported_with_those_of_an_open_server(capsys: pytest.CaptureFixture[str]) -> None:
    with StubServer(models=("qwen3_tts", "qwen3_tts_large")) as server:
        server.servicer.is_restricted = False
        assert say(server, "hello", "--model-name", "none") == ExitCode.SERVER
    assert "unknown model 'none'; choose one of qwen3_tts, qwen3_tts_large with --model-name" in capsys.readouterr().err


def wait_for(condition: object, limit_s: float = 20) -> None:
    end_s = time.monotonic() + limit_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < end_s
        time.sleep(0.01)


def test_a_long_text_goes_on_after_an_interruption(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The server refuses the second passage of the first run."""
    text, book, wav = "One two.\n\nThree four five.\n\nSix.", tmp_path / "book.txt", tmp_path / "book.wav"
    book.write_text(text)
    files = ["--file", str(book), "--output", str(wav), "--subtitles", str(tmp_path / "book.srt")]
    with WordServer(max_characters=10) as server:
        assert main(["say", "--url", server.url, *files]) == ExitCode.REQUEST
        assert "the same command goes on from there" in capsys.readouterr().err
        server.servicer.max_characters = 100
        first, refused = map(text_of, server.servicer.received)
        assert main(["say", "--url", server.url, *files]) == ExitCode.OK
        spoken = list(map(text_of, server.servicer.received[2:]))
        seeds = {input_text_of_seed(request) for request in server.servicer.received}
    assert "goes on with passage 2 of 3" in capsys.readouterr().err
    assert ([first, refused], spoken) == (["One two.", "Three four five."], ["Three four five.", "Six."])
    assert len(seeds) == 1
    with wave.open(str(wav)) as speech:
        assert speech.getnframes() == 6 * WORD_SAMPLES + 2 * PARAGRAPH_PAUSE
    cues = (tmp_path / "book.srt").read_text().split("\n\n")
    assert [cue.splitlines()[2] for cue in cues if cue] == ["One two.", "Three four five.", "Six."]
    assert not list(tmp_path.glob("*.progress"))


def input_text_of_seed(request: Any) -> bytes:
    [index] = [index for index, tensor in enumerate(request.inputs) if tensor.name == "seed"]
    seed: bytes = request.raw_input_contents[index]
    return seed


@pytest.mark.parametrize(("more", "message"), [(["Hi."], "two texts"), (["--output", "-"], "name a WAV file")])
def test_a_file_is_the_only_text_and_written_to_a_file(
    stub: StubServer, tmp_path: Path, more: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert say(stub, "--file", str(tmp_path / "book.txt"), *more) == ExitCode.USAGE
    assert message in capsys.readouterr().err
