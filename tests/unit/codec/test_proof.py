"""The proof that code2wav does what it did when it was exported: what it lets pass, what it refuses and how."""

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from code2wav_step.buckets import Buckets
from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.codec.calls import plan_calls
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MAX_BATCH, MAX_FRAMES, OVERFLOW
from qwen3_tts_engine.codec.golden import GOLDEN, Golden
from qwen3_tts_engine.codec.proof import CodecProof, CodecProofError
from qwen3_tts_engine.codec.states import CodecStates, overflowed
from qwen3_tts_engine.core import Chunks
from qwen3_tts_engine.request import RequestError, Unavailable
from qwen3_tts_engine.scheduling.chunker import MAX_CALL_FRAMES
from scripts.benchmarks.tensorrt import proof_seconds

UTTERANCES, FRAMES = 3, 31
LENGTHS = list(CHUNK_FRAMES)
SLOTS = 64
FOREVER = 1e9
Spoil = Callable[[np.ndarray, Chunks], np.ndarray]


def make_golden() -> Golden:
    """Frame t of an utterance sounds by its codes and by the t frames before it."""
    random = np.random.default_rng(1)
    codes = random.integers(0, 2048, (UTTERANCES, FRAMES, 16), np.int32)
    sound = random.normal(0, 4000, (UTTERANCES, FRAMES * SAMPLES_PER_FRAME))
    return Golden(codes, sound.astype(np.int16), 40.0, "digest")


@pytest.fixture(scope="module")
def golden() -> Golden:
    return make_golden()


class FakeCodec:
    """A codec with a state for each slot: which utterance it decodes, and how many frames of it; `spoil` changes what
    it answers."""

    def __init__(self, golden: Golden, spoil: Spoil = lambda pcm, chunks: pcm) -> None:
        self.golden, self.spoil = golden, spoil
        self.states = CodecStates(torch.zeros(SLOTS + 1, 2), 71)
        self.calls: list[tuple[int, int]] = []
        self.orders: list[list[int]] = []
        self.ages: set[tuple[int, ...]] = set()

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        rows, frames = chunks.codes.shape[:2]
        self.calls.append((rows, frames))
        self.orders.append(chunks.slots.tolist())
        self.ages.add(tuple(sorted(set(chunks.history.tolist()))))
        places = self.states.rows(chunks)
        state = self.states.gather(places).int().numpy()
        assert (state[:, 1] == chunks.history).all(), "the state is that of the frames before"
        found = [self._utterance(codes, start) for codes, start in zip(chunks.codes, state[:, 1], strict=True)]
        pcm = np.stack([self.sound(u, t, frames) for u, t in zip(found, state[:, 1], strict=True)])
        after = np.stack([found, state[:, 1] + frames], axis=1)
        self.states.store(places, torch.from_numpy(after).float())
        pcm = self.spoil(pcm, chunks)
        return pcm, overflowed(pcm)

    def sound(self, utterance: int, start: int, frames: int) -> np.ndarray:
        return self.golden.pcm[utterance, start * SAMPLES_PER_FRAME : (start + frames) * SAMPLES_PER_FRAME]

    def _utterance(self, codes: np.ndarray, start: int) -> int:
        golden = self.golden.codes[:, start : start + len(codes)]
        [found] = np.flatnonzero((golden == codes).all(axis=(1, 2)))
        return int(found)


def prove(codec: FakeCodec, seconds: float = FOREVER, slots: int = SLOTS, closed: bool = False) -> None:
    stop = threading.Event()
    if closed:
        stop.set()
    CodecProof(codec, codec.golden).run(LENGTHS, slots, seconds, stop)


def refusal(golden: Golden, spoil: Spoil) -> str:
    with pytest.raises(CodecProofError) as refused:
        prove(FakeCodec(golden, spoil))
    return str(refused.value)


def test_a_right_codec_passes_and_the_log_says_how_well(golden: Golden, caplog: pytest.LogCaptureFixture) -> None:
    codec = FakeCodec(golden)
    with caplog.at_level(logging.INFO):
        prove(codec)
    calls = len(plan_calls(LENGTHS, SLOTS))
    assert len(codec.calls) == calls
    assert f"agrees with its golden cases: {calls} of {calls} calls" in caplog.text
    assert "worst SNR inf dB (40.0 required)" in caplog.text
    assert proof_seconds(caplog.text) is not None, "the benchmark reads it"
    assert proof_seconds("no proof") is None


def test_the_last_bit_may_differ(golden: Golden) -> None:
    """A quiet utterance of a form with a high limit: what is rounded otherwise is no difference."""
    quiet = Golden(golden.codes, golden.pcm // 100, 60.0, "digest")
    prove(FakeCodec(quiet, lambda pcm, chunks: pcm + (np.arange(pcm.shape[1]) % 4 == 0).astype(np.int16)))


@pytest.mark.parametrize("slots", [1, 3, 64, 1024])
@pytest.mark.parametrize("lengths", [[1], [1, 2, 4], LENGTHS], ids=len)
def test_calls_are_those_of_the_chunker(slots: int, lengths: list[int]) -> None:
    calls = plan_calls(lengths, slots)
    assert [(call.rows, call.frames) for call in calls[: len(lengths)]] == [(1, frames) for frames in lengths]
    assert all(call.rows <= min(slots, 64) and call.size <= MAX_CALL_FRAMES for call in calls)
    assert calls == plan_calls(lengths, slots), "every time the same"
    shapes = {(call.rows, call.frames) for call in calls if call in calls[: len(calls) // 2]}
    assert shapes <= {(call.rows, call.frames) for call in calls if not call.cold}, "the first ones come twice"


def test_calls_cover_every_captured_shape() -> None:
    called = {(call.rows, call.frames) for call in plan_calls(LENGTHS, 64)}
    assert {(rows, frames) for rows, frames in Buckets(MAX_BATCH, MAX_FRAMES).shapes if frames in LENGTHS} <= called
    assert {(rows, frames) for rows in range(1, 9) for frames in LENGTHS} <= called


def test_batches_hold_equal_rows_and_rows_of_other_ages(golden: Golden) -> None:
    codec = FakeCodec(golden)
    prove(codec)
    assert (0,) in codec.ages
    assert max(len(ages) for ages in codec.ages) > 3
    assert any(order != sorted(order) for order in codec.orders), "a slot is not always in the same row"


def test_states_are_left_as_they_were(golden: Golden) -> None:
    codec = FakeCodec(golden)
    prove(codec)
    assert not codec.states._states[-1].any(), "where streams begin is zero"
    prove(codec)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_few_slots_are_enough(golden: Golden, rows: int) -> None:
    codec = FakeCodec(golden)
    prove(codec, slots=rows)
    assert max(called for called, _ in codec.calls) == rows


def only(shape: tuple[int, int], spoil: Spoil) -> Spoil:
    return lambda pcm, chunks: spoil(pcm, chunks) if chunks.codes.shape[:2] == shape else pcm


def half(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
    return pcm // 2


def silent_row(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
    return np.concatenate([pcm[:-1], np.zeros_like(pcm[-1:])])


def swapped(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
    return pcm[::-1]


def overflow(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
    return np.concatenate([np.full_like(pcm[:1], OVERFLOW), pcm[1:]])


def shorter(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
    return pcm[:, :-1]


def refuse(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
    raise RequestError("code2wav: the plan has no profile for this shape, and much more could be said of it")


class Stale:
    """Answers what the call before made; with `of_shape`, the last one of its own shape, as a CUDA graph that reads old
    inputs does."""

    def __init__(self, of_shape: bool) -> None:
        self._of_shape = of_shape
        self._kept: dict[tuple[int, ...], np.ndarray] = {}
        self._last = np.zeros(0, np.int16)

    def __call__(self, pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
        stale = self._kept.get(pcm.shape, pcm) if self._of_shape else np.resize(self._last, pcm.shape)
        self._kept[pcm.shape] = self._last = pcm
        return stale


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (half, "8x4: 6.0 dB"),
        (silent_row, "8x4: 0.0 dB"),
        (swapped, "8x4: -"),
        (overflow, "8x4: the codec gave no finite audio"),
        (shorter, "8x4: -inf dB"),
        (refuse, "8x4: the plan has no profile for this shape, and muc…"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_one_wrong_shape_is_named_alone(golden: Golden, spoil: Spoil, told: str) -> None:
    message = refusal(golden, only((8, 4), spoil))
    assert message.startswith("code2wav differs from its golden cases at 1 of ")
    assert told in message
    assert "; at least 40.0 dB is required. Export the codec again on this machine" in message


@pytest.mark.parametrize("of_shape", [False, True])
def test_stale_samples_are_refused(golden: Golden, of_shape: bool) -> None:
    assert "8x4: " in refusal(golden, only((8, 4), Stale(of_shape)))
    assert "more; at least" in refusal(golden, Stale(of_shape))


def test_noise_is_refused_and_only_the_worst_shapes_are_told(golden: Golden) -> None:
    random = np.random.default_rng(0)
    message = refusal(golden, lambda pcm, chunks: (pcm + random.normal(0, 80, pcm.shape)).astype(np.int16))
    assert message.count(" dB,") == 10
    # 4000 over 80 are 34 dB, and two noises differ by 3 dB more.
    assert re.search(r"SNR\): \d+x1: 3[01]\.\d dB, ", message)
    assert "more; at least 40.0 dB" in message
    assert len(message) < 500
    prove(FakeCodec(golden, lambda pcm, chunks: (pcm + random.normal(0, 20, pcm.shape)).astype(np.int16)))


def test_equal_rows_must_be_equal(golden: Golden) -> None:
    """Rows that differ from the golden samples by 41.5 dB each, in opposite directions."""

    def opposite(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
        error = np.where(chunks.slots % 2 == 0, 33, -33)[:, None] * np.where(np.arange(pcm.shape[1]) % 2, 1, -1)
        return (pcm + error).astype(np.int16)

    message = refusal(golden, opposite)
    assert " 1x" not in message
    assert "35." in message


def test_a_lost_state_is_refused(golden: Golden) -> None:
    """The samples of a call are right, but those of the next one begin the utterance anew."""

    def forget(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
        frames = chunks.codes.shape[1]
        fresh = np.stack([golden.pcm[0, : frames * SAMPLES_PER_FRAME]] * len(chunks))
        return np.where(chunks.first[:, None], pcm, fresh)

    assert re.search(r"at 9\d of 100 shapes", refusal(golden, forget))


def test_each_chunk_length_is_called_whatever_the_time(golden: Golden) -> None:
    codec = FakeCodec(golden)
    prove(codec, seconds=1e-9)
    assert codec.calls == [(1, frames) for frames in LENGTHS]


def test_calls_that_do_not_fit_into_the_time_are_left_out(golden: Golden, caplog: pytest.LogCaptureFixture) -> None:
    """A codec that takes a second for each row and frame, and 100 seconds."""
    codec = FakeCodec(golden)
    proof = CodecProof(codec, golden, clock=lambda: float(sum(rows * frames for rows, frames in codec.calls)))
    with caplog.at_level(logging.INFO):
        proof.run(LENGTHS, SLOTS, 100.0, threading.Event())
    spent = sum(rows * frames for rows, frames in codec.calls)
    assert 90 < spent <= 100
    assert len({rows for rows, _ in codec.calls}) > 2, "what fits is called"
    assert f"{len(codec.calls)} of " in caplog.text


def test_a_server_that_stops_waits_for_no_proof(golden: Golden) -> None:
    with pytest.raises(Unavailable, match="shutting down"):
        prove(FakeCodec(golden), closed=True)


def test_golden_cases_are_read_as_they_were_written(golden: Golden, tmp_path: Path) -> None:
    golden.write(tmp_path / GOLDEN)
    read = Golden.read(tmp_path, "digest")
    np.testing.assert_array_equal(read.codes, golden.codes)
    np.testing.assert_array_equal(read.pcm, golden.pcm)
    assert (read.snr_db, read.codec_digest, read.codes.dtype) == (40.0, "digest", np.int32)


def other_digest(path: Path) -> None:
    golden = make_golden()
    Golden(golden.codes, golden.pcm, 40.0, "another").write(path)


def torn(path: Path) -> None:
    make_golden().write(path)
    path.write_bytes(path.read_bytes()[:1000])


def without_samples(path: Path) -> None:
    save_file({"codes": make_golden().codes}, path)


def too_short(path: Path) -> None:
    golden = make_golden()
    Golden(golden.codes, golden.pcm[:, :-1], 40.0, "digest").write(path)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: None, "missing; `python -m export` of the checkpoint writes it"),
        (other_digest, "codec_digest is another, the checkpoint has digest: export .* again"),
        (torn, "unreadable: .* export this checkpoint's codec again"),
        (without_samples, "unreadable: .* export this checkpoint's codec again"),
        (too_short, r"unreadable: int16 samples \[3, 59519\] for codes \[3, 31, 16\]: export"),
    ],
)
def test_a_golden_file_that_does_not_fit_is_named(spoil: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    spoil(tmp_path / GOLDEN)
    with pytest.raises(CheckpointError, match=message) as refused:
        Golden.read(tmp_path, "digest")
    assert str(refused.value).startswith(str(tmp_path / GOLDEN))
