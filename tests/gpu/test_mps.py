"""Talker and codec as clients of NVIDIA's Multi-Process Service."""

import os
import shutil
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from scripts.server.mps import CONTROL, DRIVER_PROGRAMS
from tests.e2e.serving import Caller, eventually, stub_pid
from tests.gpu.test_serving import ENDLESS, STREAMS, serving

PATIENCE = 60.0
MPS = bool(shutil.which(CONTROL, path=os.pathsep.join([os.environ["PATH"], DRIVER_PROGRAMS])))
pytestmark = pytest.mark.skipif(not MPS, reason=f"no {CONTROL}")
SHARED = "talker and codec share the GPU through MPS"


def test_talker_and_codec_overlap_by_default(repository: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    with serving(repository, tmp_path, tiny_checkpoint) as caller:
        assert caller.speak(max_frames=4).error is None
    assert SHARED in (tmp_path / "server.log").read_text()


def test_talker_and_codec_take_turns_without_mps(repository: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    with serving(repository, tmp_path, tiny_checkpoint, QWEN3_TTS_MPS="off") as caller:
        assert caller.speak(max_frames=4).error is None
    assert "talker and codec share the GPU in turn" in (tmp_path / "server.log").read_text()


def kill_beside_streams(caller: Caller, model: str) -> None:
    """Kills a model's process; asserts that the server and every stream end."""
    with ThreadPoolExecutor(STREAMS) as pool:
        in_flight = [pool.submit(caller.speak, seed=i, max_frames=ENDLESS) for i in range(STREAMS)]
        eventually(lambda: caller.metric("qwen3_tts_requests_running") == STREAMS)
        os.kill(stub_pid(caller.server, model), signal.SIGKILL)
        assert caller.server.wait(PATIENCE) == -signal.SIGKILL
        assert all(future.result(PATIENCE).error for future in in_flight)


@pytest.mark.parametrize("model", ["qwen3_tts", "code2wav"])
def test_killed_process_ends_all_streams_and_another_server_starts(
    repository: Path, endless_checkpoint: Path, tiny_checkpoint: Path, tmp_path: Path, model: str
) -> None:
    with serving(repository, tmp_path / "first", endless_checkpoint) as caller:
        kill_beside_streams(caller, model)
    with serving(repository, tmp_path / "second", tiny_checkpoint) as caller:
        assert caller.speak(max_frames=4).error is None
