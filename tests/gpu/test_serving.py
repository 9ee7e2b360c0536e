"""Talker and codec on the GPU, through a real tritonserver."""

import re
import shutil
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.e2e.serving import Caller, Received, eventually, serve

STREAMS, FRAMES = 8, 40
ENDLESS = 4000
# The first start compiles all kernels: 75 s on 16 idle cores.
READY_SECONDS = 300.0
ON_SECOND_DEVICE = "instance_group [ { count: 1 kind: KIND_GPU gpus: [ 1 ] } ]"


@contextmanager
def serving(
    repository: Path,
    folder: Path,
    checkpoint: Path,
    form: str = "python",
    backends: Sequence[Path] = (),
    **settings: str,
) -> Iterator[Caller]:
    environment = {"QWEN3_TTS_CHECKPOINT": str(checkpoint), "QWEN3_TTS_MAX_STREAMS": str(STREAMS)}
    environment |= settings
    with (
        serve(repository, folder, environment, (), backends, READY_SECONDS) as server,
        Caller(server) as caller,
    ):
        yield caller


@pytest.fixture(scope="module")
def caller(repository: Path, tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Caller]:
    with serving(repository, tmp_path_factory.mktemp("server"), tiny_checkpoint) as caller:
        yield caller


def assert_same_speech(found: Received, expected: Received) -> None:
    """Equal up to rounding, as kernels differ by batch size."""
    assert (found.error, expected.error) == (None, None)
    assert len(found.samples) == len(expected.samples)
    difference = np.abs(found.samples.astype(np.int32) - expected.samples)
    assert np.linalg.norm(difference) < 0.02 * np.linalg.norm(expected.samples.astype(np.float64))


def test_equal_seeds_give_equal_speech_beside_other_streams(
    repository: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    invariant: dict[str, Any] = {"QWEN3_TTS_BATCH_INVARIANT": "1", "QWEN3_TTS_MAX_STREAMS": "32"}
    seeds = [11, *range(20, 30), 11, *range(30, 40), 11]
    with (
        serving(repository, tmp_path, tiny_checkpoint, **invariant) as caller,
        ThreadPoolExecutor(len(seeds)) as pool,
    ):
        alone = caller.speak(seed=11, max_frames=FRAMES)
        concurrent = list(pool.map(lambda seed: caller.speak(seed=seed, max_frames=FRAMES), seeds))
    for seed, received in zip(seeds, concurrent, strict=True):
        if seed == 11:
            assert_same_speech(received, alone)


def test_cancelled_stream_frees_its_slot_within_200_ms(
    repository: Path, endless_checkpoint: Path, tmp_path: Path
) -> None:
    # Pages for all of them: a newcomer waits behind parked streams.
    with serving(repository, tmp_path, endless_checkpoint, QWEN3_TTS_KV_CACHE_GIB="1") as caller:
        cancel_one_of_many(caller)


def cancel_one_of_many(caller: Caller) -> None:
    running = [caller.stream(seed=seed, max_frames=ENDLESS) for seed in range(STREAMS)]
    for stream in running:
        list(islice(stream, 2))
    first_audio: list[int] = []

    def wait() -> None:
        first_audio.extend(arrival for arrival, _ in islice(caller.stream(seed=99, max_frames=4), 1))

    waiting = threading.Thread(target=wait)
    waiting.start()
    eventually(lambda: caller.metric("qwen3_tts_requests_waiting") == 1)
    assert not first_audio
    cancelled = time.perf_counter_ns()
    running[3].close()  # type: ignore[attr-defined]
    waiting.join()
    milliseconds = (first_audio[0] - cancelled) / 1e6
    print(f"first audio of the waiting request: {milliseconds:.1f} ms after the cancel")
    assert 0 < milliseconds < 200
    for stream in running:
        stream.close()  # type: ignore[attr-defined]
    eventually(lambda: caller.metric("qwen3_tts_requests_running") == 0)
    frames = caller.metric("qwen3_tts_frames_total")
    time.sleep(1.0)
    assert caller.metric("qwen3_tts_frames_total") == frames


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="one CUDA device")
def test_second_device_gives_the_same_speech(
    caller: Caller, repository: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(repository, tmp_path / "model_repository")
    for config in (moved / "qwen3_tts" / "config.pbtxt", moved / "code2wav" / "configs" / "python.pbtxt"):
        groups = re.sub(r"^instance_group .*$", ON_SECOND_DEVICE, config.read_text(), flags=re.MULTILINE)
        config.write_text(groups)
    with serving(moved, tmp_path, tiny_checkpoint, CUDA_VISIBLE_DEVICES="0,1") as second:
        for seed in range(STREAMS):
            assert_same_speech(second.speak(seed=seed, max_frames=FRAMES), caller.speak(seed=seed, max_frames=FRAMES))
