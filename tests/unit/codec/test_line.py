"""The direct line between talker and codec: both ends in one process, which opens its own files."""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from code2wav_step import line as codec_line
from code2wav_step.config import Contract
from code2wav_step.requests import InvalidInputError
from qwen3_tts_engine.audio import NUM_CODEBOOKS, SAMPLES_PER_FRAME
from qwen3_tts_engine.codec.contract import LINE, MAX_CALL_FRAMES, PLACES_SIZE, terms
from qwen3_tts_engine.codec.line import Line, leave_note
from qwen3_tts_engine.codec.row_calls import RowCalls
from qwen3_tts_engine.interfaces import ModelCall
from qwen3_tts_engine.request import RequestError, Unavailable

CONTRACT = Contract(**terms())  # type: ignore[arg-type]
SIZES = (NUM_CODEBOOKS, SAMPLES_PER_FRAME)
Run = Callable[[np.ndarray, np.ndarray, np.ndarray], None]


def echo(codes: np.ndarray, places: np.ndarray, pcm: np.ndarray) -> None:
    """The first samples of a row are its first codes, the next ones its place."""
    pcm[:, :3] = codes[:, 0, :3]
    pcm[:, 3:7] = places
    pcm[:, -1] = codes[:, -1, -1]


def ignore(codes: np.ndarray, places: np.ndarray) -> None: ...


def take(address: str, run: Run = echo, prepare: codec_line.Prepare = ignore, contract: Contract = CONTRACT) -> None:
    """Takes the codec's end."""
    codec_line.Line(address, contract, SIZES, run, prepare, nullcontext())


def opened(run: Run, prepare: codec_line.Prepare = ignore) -> Line:
    line = Line()
    assert not line.is_open()
    take(line.address, run, prepare)
    wait_for(line)
    return line


def wait_for(line: Line) -> None:
    while not line.is_open():
        time.sleep(0.001)


def call(rows: int, frames: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    codes = random.integers(0, 2048, (rows, frames, NUM_CODEBOOKS), np.int32)
    return codes, random.integers(0, 300, (rows, PLACES_SIZE), np.int32)


@pytest.mark.parametrize(("rows", "frames"), [(1, 1), (3, 4), (64, 8), (MAX_CALL_FRAMES // 16, 16)])
def test_a_call_returns_the_samples_of_its_codes(rows: int, frames: int) -> None:
    line = opened(echo)
    for seed in range(3):
        codes, places = call(rows, frames, seed)
        pcm = line.call(codes, places)
        assert pcm.shape == (rows, frames * SAMPLES_PER_FRAME)
        assert (pcm[:, :3] == codes[:, 0, :3]).all()
        assert (pcm[:, 3:7] == places).all()
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

    others = threading.enumerate()
    line = opened(run)
    [thread] = set(threading.enumerate()) - set(others)
    for _ in range(2):
        with pytest.raises(Unavailable, match="code2wav: its process ended"):
            line.call(*call(1, 1))
    # So that pytest reports its exception with this test, which ignores it.
    thread.join()


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


def note_of(line: Line) -> dict[str, Any]:
    process, file = json.loads(line.address)["note"]
    note: dict[str, Any] = json.loads(Path(f"/proc/{process}/fd/{file}").read_bytes())
    return note


@pytest.mark.parametrize("name", ["requests", "answers"])
def test_a_note_of_a_file_that_is_no_pipe_is_refused(name: str) -> None:
    note = note_of(Line())
    note["files"][name] = note["files"]["memory"]
    with pytest.raises(ValueError, match="is no pipe"):
        take(leave_note(note))


def test_a_note_of_a_memory_of_another_purpose_is_refused() -> None:
    note = note_of(Line())
    note["files"]["memory"] = json.loads(leave_note({}))["note"][1]
    with pytest.raises(ValueError, match="is not qwen3_tts_line"):
        take(leave_note(note))


def assert_refused(address: str, contract: Contract = CONTRACT) -> None:
    with pytest.raises(InvalidInputError, match=r"^line: not an address issued by a talker$"):
        take(address, contract=contract)


def test_a_note_of_another_purpose_is_refused() -> None:
    assert_refused(Line().address, replace(CONTRACT, note_memory="another"))


@contextmanager
def forged_notes(tmp_path: Path) -> Iterator[list[int]]:
    """Files of this process with a note and the secret "mine": one on a disk, one in memory."""
    (tmp_path / "note").write_text(json.dumps({"secret": "mine"}))
    with (tmp_path / "note").open() as file, os.fdopen(os.memfd_create("other"), "w+") as other:
        other.write(json.dumps({"secret": "mine"}))
        other.flush()
        yield [file.fileno(), other.fileno()]


def test_refuses_an_address_without_the_secret(tmp_path: Path) -> None:
    """Where the note is can be guessed: process ids and file numbers are small."""
    line = Line()
    address = json.loads(line.address)
    with forged_notes(tmp_path) as files:
        for forged in (
            {**address, "secret": "0" * 32},
            {**address, "secret": ""},
            {**address, "secret": None},
            {"note": address["note"]},
            *({"note": [os.getpid(), file], "secret": "mine"} for file in files),
            {"note": ["1/../self", 0], "secret": "mine"},
            note_of(line) | {"secret": "mine"},
            {},
            [],
        ):
            assert_refused(json.dumps(forged))
    for forged_text in ("nowhere", "", "[" * 100_000):
        assert_refused(forged_text)
    assert not line.is_open()
    take(line.address)
    wait_for(line)


def test_each_note_has_a_secret_of_its_own() -> None:
    assert len({json.loads(leave_note({}))["secret"] for _ in range(3)}) == 3


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


def test_calls_go_through_triton_until_the_line_is_open() -> None:
    """The calls through Triton carry its address; those by the line are watched, as Triton's are by its client."""
    line, through_triton, watched = Line(), list[ModelCall](), list[str]()

    def call_model(made: ModelCall) -> list[np.ndarray]:
        through_triton.append(made)
        codes, places = made.inputs["codes"], made.inputs["places"]
        pcm = np.zeros((len(codes), codes.shape[1] * SAMPLES_PER_FRAME), np.int16)
        echo(codes, places, pcm)
        return [pcm]

    @contextmanager
    def watch(model: str) -> Iterator[None]:
        watched.append(model)
        yield

    calls = RowCalls(call_model, watch, line)
    codes, places = call(2, 4)
    calls.announce()
    expected = calls.call(codes, places)
    assert [(made.model, made.outputs, made.parameters) for made in through_triton] == [
        ("code2wav", ["pcm"], {LINE: line.address})
    ]
    take(line.address)
    wait_for(line)
    calls.announce()
    assert (calls.call(codes, places) == expected).all()
    assert (len(through_triton), watched) == (1, ["code2wav"])


def test_calls_without_a_line_carry_no_address() -> None:
    parameters = list[object]()

    def call_model(made: ModelCall) -> list[np.ndarray]:
        parameters.append(made.parameters)
        return [np.zeros((2, 4 * SAMPLES_PER_FRAME), np.int16)]

    calls = RowCalls(call_model, lambda model: nullcontext(), None)
    calls.announce()
    calls.call(*call(2, 4))
    assert parameters == [{}]
