"""The direct line between talker and codec: both ends in one process, which opens its own files."""

import threading
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import pytest

from code2wav_step import line as codec_line
from qwen3_tts_engine.audio import NUM_CODEBOOKS, SAMPLES_PER_FRAME
from qwen3_tts_engine.codec.contract import MAX_CALL_FRAMES, STATES_MEMORY
from qwen3_tts_engine.codec.line import Line
from qwen3_tts_engine.request import RequestError
from tests.unit.engine.test_engine import eventually

SIZES = (NUM_CODEBOOKS, SAMPLES_PER_FRAME)
Run = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


def echo(codes: np.ndarray, places: np.ndarray, pcm: np.ndarray) -> None:
    """The first samples of a row are its first codes, the next ones its place."""
    pcm[:, :3] = codes[:, 0, :3]
    pcm[:, 3:6] = places
    pcm[:, -1] = codes[:, -1, -1]


def ignore(codes: np.ndarray, places: np.ndarray) -> None: ...


def opened(run: Run, prepare: codec_line.Prepare = ignore) -> Line:
    line = Line()
    assert not line.is_open()
    codec_line.Line(line.place, STATES_MEMORY, SIZES, run, prepare, nullcontext())
    eventually(line.is_open)
    return line


def call(rows: int, frames: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    codes = random.integers(0, 2048, (rows, frames, NUM_CODEBOOKS), np.int32)
    return codes, random.integers(0, 300, (rows, 3), np.int32)


@pytest.mark.parametrize(("rows", "frames"), [(1, 1), (3, 4), (64, 8), (MAX_CALL_FRAMES // 16, 16)])
def test_a_call_returns_the_samples_of_its_codes(rows: int, frames: int) -> None:
    line = opened(echo)
    for seed in range(3):
        codes, places = call(rows, frames, seed)
        pcm = line.call(codes, places)
        assert pcm.shape == (rows, frames * SAMPLES_PER_FRAME)
        assert (pcm[:, :3] == codes[:, 0, :3]).all()
        assert (pcm[:, 3:6] == places).all()
        assert (pcm[:, -1] == codes[:, -1, -1]).all()


def test_samples_outlive_the_next_call() -> None:
    line = opened(echo)
    first, second = call(2, 1, seed=1), call(2, 1, seed=2)
    pcm = line.call(*first)
    line.call(*second)
    assert (pcm[:, :3] == first[0][:, 0, :3]).all()


def test_an_error_of_the_codec_is_the_callers_and_the_line_goes_on() -> None:
    def run(codes: np.ndarray, places: np.ndarray, pcm: np.ndarray) -> None:
        if codes[0, 0, 0] == 7:
            raise ValueError("codes: 7 given" + "." * 9000)
        echo(codes, places, pcm)

    line = opened(run)
    codes, places = call(1, 1)
    codes[0, 0, 0] = 7
    with pytest.raises(RequestError, match=r"code2wav: codes: 7 given\.\.\."):
        line.call(codes, places)
    codes[0, 0, 0] = 8
    assert line.call(codes, places)[0, 0] == 8


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_end_of_the_codec_ends_a_call() -> None:
    def run(codes: np.ndarray, places: np.ndarray, pcm: np.ndarray) -> None:
        raise SystemExit  # ends the thread, which closes its end of the pipes as a dead process does

    line = opened(run)
    for _ in range(2):
        with pytest.raises(RequestError, match="code2wav: its process ended"):
            line.call(*call(1, 1))


def test_callers_take_turns() -> None:
    line = opened(echo)
    wrong = []

    def caller(seed: int) -> None:
        for number in range(50):
            codes, places = call(1 + seed, 1, seed * 100 + number)
            pcm = line.call(codes, places)
            wrong.append(not (pcm[:, :3] == codes[:, 0, :3]).all())

    threads = [threading.Thread(target=caller, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(wrong), sum(wrong)) == (200, 0)


@pytest.mark.parametrize("name", ["requests", "answers"])
def test_a_place_that_is_no_pipe_is_refused(name: str) -> None:
    line = Line()
    line.place["files"][name] = line.place["files"]["memory"]
    with pytest.raises(ValueError, match="is no pipe"):
        codec_line.Line(line.place, STATES_MEMORY, SIZES, echo, ignore, nullcontext())


def test_a_memory_of_another_purpose_is_refused() -> None:
    with pytest.raises(ValueError, match="is not another"):
        codec_line.Line(Line().place, "another", SIZES, echo, ignore, nullcontext())


def test_a_call_beyond_the_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="codes: too large for the line"):
        opened(echo).call(*call(1, MAX_CALL_FRAMES + 1))


def test_an_announced_call_is_prepared_by_the_last_one() -> None:
    prepared = list[int]()

    def prepare(codes: np.ndarray, places: np.ndarray) -> None:
        prepared.append(int(codes.sum()))
        raise ValueError("has no effect")

    line = opened(echo, prepare)
    for seed in range(3):
        codes, places = call(2, 4, seed)
        line.call(codes, places)
        line.announce()
        assert (line.call(codes, places)[:, :3] == codes[:, 0, :3]).all()
        assert prepared.pop() == codes.sum()
