"""The talker compares the codec with golden cases before the first request, through a real tritonserver."""

import json
import re
import signal
import statistics
import urllib.request
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from export.forms.onnx_form import ONNX
from qwen3_tts_engine.codec.golden import GOLDEN
from scripts.server.installation import ServerError
from scripts.server.protection import HTTP_HEADER
from scripts.server.tritonserver import TritonServer
from tests.e2e.serving import Caller, repository_with, serve

TALKER_ONLY = ("--model-control-mode=explicit", "--load-model=qwen3_tts")
DIFFERS = "code2wav differs from its golden cases at "
AGREES = "code2wav agrees with its golden cases: "
REQUESTS = 9
PATIENCE = 120.0


@pytest.fixture
def repository(tiny_code2wav: Path, tmp_path: Path) -> Path:
    return repository_with(tiny_code2wav, tmp_path)


@pytest.fixture
def _loaded_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers whose codec is rejected are never ready."""
    monkeypatch.setattr(TritonServer, "is_ready", is_loaded)


def is_loaded(server: TritonServer) -> bool:
    """Asks the index of models, for which they do not prove themselves."""
    url = f"http://localhost:{server.ports.http}/v2/repository/index"
    try:
        with urllib.request.urlopen(urllib.request.Request(url, b"{}", {HTTP_HEADER: server.admin_key})) as response:
            states = {model["name"]: model.get("state") for model in json.load(response)}
    except OSError:
        return False
    return bool(states["qwen3_tts"] == "READY")


def environment(checkpoint: Path, **settings: str) -> dict[str, str]:
    return {"QWEN3_TTS_CHECKPOINT": str(checkpoint), **{f"QWEN3_TTS_{name}": value for name, value in settings.items()}}


def halve_volume(repository: Path) -> None:
    """Halves the volume of the codec's output."""
    path = repository / "code2wav" / "1" / ONNX.filename
    model = onnx.load(path)
    [(node, i)] = [(node, i) for node in model.graph.node for i, name in enumerate(node.output) if name == "waveform"]
    node.output[i] = "waveform.loud"
    model.graph.initializer.append(helper.make_tensor("half", TensorProto.FLOAT, [], [0.5]))
    model.graph.node.append(helper.make_node("Mul", ["waveform.loud", "half"], ["waveform"]))
    onnx.save(model, path)


def lines(folder: Path, beginning: str) -> list[str]:
    return [line for line in (folder / "server.log").read_text().splitlines() if beginning in line]


def test_valid_codec_agrees_once_and_serves_requests(repository: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    defaults = {"TALKER_PROOF_SECONDS": "2", "CODEC_PROOF_SECONDS": "3"}
    with serve(repository, tmp_path, environment(tiny_checkpoint, **defaults)) as server, Caller(server) as caller:
        assert lines(tmp_path, "the talker agrees with its golden cases: ")
        assert lines(tmp_path, "warm-up speech took "), "the server is ready before it is warm"
        assert caller.speak(max_frames=4).error is None
        frames = caller.metric("qwen3_tts_frames_total")
        assert frames <= 4, "warm-up speech is not counted"
        received = [caller.speak("Hello there.", seed=seed, max_frames=8) for seed in range(REQUESTS)]
        ttfa = [(one.arrivals[0] - one.sent) / 1e6 for one in received]
        print(f"TTFA after the golden cases: first {ttfa[0]:.1f} ms, median {statistics.median(ttfa):.1f} ms")
        [line] = lines(tmp_path, AGREES)
        print(line)


@pytest.mark.usefixtures("_loaded_is_enough")
def test_codec_that_differs_rejects_requests_and_ends_the_server(
    repository: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    halve_volume(repository)
    with serve(repository, tmp_path, environment(tiny_checkpoint)) as server, Caller(server) as caller:
        assert str(caller.speak().error).startswith(f"UNAVAILABLE: {DIFFERS}")
        # Differs from the signal after serving, as a restart would not help.
        assert server.wait(PATIENCE) == -signal.SIGUSR1
    assert lines(tmp_path, "guard: qwen3_tts: it cannot serve; ending tritonserver with SIGUSR1")
    [line] = lines(tmp_path, f"no request is served: {DIFFERS}")
    # Half the volume gives an SNR of 6.02 dB, or more if a call is quieter than its utterance.
    assert re.search(r"\d+x\d+: 6\.\d dB, ", line)
    assert "; at least 60.0 dB is required. Export the codec again on this machine" in line


@pytest.mark.long
@pytest.mark.usefixtures("_loaded_is_enough")
def test_codec_that_differs_with_when_dead_stay_rejects_every_request(
    repository: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    halve_volume(repository)
    stay = environment(tiny_checkpoint, WHEN_DEAD="stay")
    with serve(repository, tmp_path, stay) as server, Caller(server) as caller:
        for _ in range(2):
            assert str(caller.speak().error).startswith(f"UNAVAILABLE: {DIFFERS}")


# All servers with scripted models are without it.
@pytest.mark.long
def test_codec_that_differs_is_served_without_the_comparison(
    repository: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    halve_volume(repository)
    (repository / "code2wav" / "1" / GOLDEN).unlink()
    off = environment(tiny_checkpoint, CODEC_PROOF_SECONDS="0")
    with serve(repository, tmp_path, off) as server, Caller(server) as caller:
        assert caller.speak(max_frames=4).error is None
        assert not lines(tmp_path, "code2wav agrees")


@pytest.mark.long
def test_missing_golden_cases_prevent_start(repository: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    golden = repository / "code2wav" / "1" / GOLDEN
    golden.unlink()
    with (
        pytest.raises(ServerError, match="ended with exit code 1"),
        serve(repository, tmp_path, environment(tiny_checkpoint)),
    ):
        pass
    assert lines(tmp_path, f"{golden}: missing; `python -m export` of the checkpoint writes it beside the codec")


@pytest.mark.long
@pytest.mark.usefixtures("_loaded_is_enough")
def test_codec_that_is_not_loaded_ends_the_server(repository: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    short_wait = environment(tiny_checkpoint, CODEC_WAIT_SECONDS="0.5")
    with serve(repository, tmp_path, short_wait, TALKER_ONLY) as server:
        assert server.wait(PATIENCE) == -signal.SIGUSR1
    assert lines(tmp_path, "code2wav is unavailable after 0.5 s (codec_wait_seconds): load it before this model")
