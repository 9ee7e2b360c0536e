"""The startup proof that code2wav reproduces its golden cases."""

import logging
import re
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from code2wav_step.buckets import Buckets
from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.codec.calls import plan_calls
from qwen3_tts_engine.codec.client import without_audio
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MAX_BATCH, MAX_CALL_FRAMES, MAX_FRAMES, NO_SAMPLE
from qwen3_tts_engine.codec.golden import GOLDEN, Golden
from qwen3_tts_engine.codec.proof import CodecProof, CodecProofError
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.request import RequestError, Unavailable
from scripts.benchmarks.tensorrt import proof_seconds

UTTERANCES, FRAMES = 3, 31
LENGTHS = list(CHUNK_FRAMES)
SLOTS = 64
FOREVER = 1e9
Corruption = Callable[[np.ndarray, Chunks], np.ndarray]


def make_golden() -> Golden:
    """Random codes, and random samples for each frame of each utterance."""
    random = np.random.default_rng(1)
    codes = random.integers(0, 2048, (UTTERANCES, FRAMES, 16), np.int32)
    sound = random.normal(0, 4000, (UTTERANCES, FRAMES * SAMPLES_PER_FRAME))
    return Golden(codes, sound.astype(np.int16), 40.0, "digest")


@pytest.fixture(scope="module")
def golden() -> Golden:
    return make_golden()


class FakeCodec:
    """A codec whose state holds each slot's utterance and number of decoded frames; `corrupt` changes its samples."""

    def __init__(self, golden: Golden, corrupt: Corruption = lambda pcm, chunks: pcm) -> None:
        self.golden, self.corrupt = golden, corrupt
        self.states = np.zeros((SLOTS, 2), np.int64)
        self.calls: list[tuple[int, int]] = []
        self.orders: list[list[int]] = []
        self.histories: set[tuple[int, ...]] = set()
        self.max_calls = 1

    def announce(self) -> None: ...

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        rows, frames = chunks.codes.shape[:2]
        self.calls.append((rows, frames))
        self.orders.append(chunks.slots.tolist())
        self.histories.add(tuple(sorted(set(chunks.history.tolist()))))
        state = np.where(chunks.first[:, None], 0, self.states[chunks.slots])
        assert (state[:, 1] == chunks.history).all(), "the state is that of the preceding frames"
        found = [self._utterance(codes, start) for codes, start in zip(chunks.codes, state[:, 1], strict=True)]
        pcm = np.stack([self.sound(u, t, frames) for u, t in zip(found, state[:, 1], strict=True)])
        self.states[chunks.slots] = np.stack([found, state[:, 1] + frames], axis=1)
        pcm = self.corrupt(pcm, chunks)
        return pcm, without_audio(pcm)

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


def refusal(golden: Golden, corrupt: Corruption) -> str:
    with pytest.raises(CodecProofError) as refused:
        prove(FakeCodec(golden, corrupt))
    return str(refused.value)


def test_a_correct_codec_passes_and_its_snr_is_logged(golden: Golden, caplog: pytest.LogCaptureFixture) -> None:
    codec = FakeCodec(golden)
    with caplog.at_level(logging.INFO):
        prove(codec)
    calls = len(plan_calls(LENGTHS, SLOTS))
    assert len(codec.calls) == calls
    assert f"agrees with its golden cases: {calls} of {calls} calls" in caplog.text
    assert "worst SNR inf dB (40.0 required)" in caplog.text
    assert proof_seconds(caplog.text) is not None, "the benchmark parses this log"
    assert proof_seconds("no proof") is None


def test_accepts_differences_in_the_last_bit(golden: Golden) -> None:
    """A quiet utterance and a high SNR limit: different rounding is accepted."""
    quiet = Golden(golden.codes, golden.pcm // 100, 60.0, "digest")
    prove(FakeCodec(quiet, lambda pcm, chunks: pcm + (np.arange(pcm.shape[1]) % 4 == 0).astype(np.int16)))


@pytest.mark.parametrize("slots", [1, 3, 64, 1024])
@pytest.mark.parametrize("lengths", [[1], [1, 2, 4], LENGTHS], ids=len)
def test_planned_calls_stay_within_the_chunkers_limits(slots: int, lengths: list[int]) -> None:
    calls = plan_calls(lengths, slots)
    assert [(call.rows, call.frames) for call in calls[: len(lengths)]] == [(1, frames) for frames in lengths]
    assert all(call.rows <= min(slots, 64) and call.size <= MAX_CALL_FRAMES for call in calls)
    assert calls == plan_calls(lengths, slots), "the plan is deterministic"
    shapes = {(call.rows, call.frames) for call in calls if call in calls[: len(calls) // 2]}
    assert shapes <= {(call.rows, call.frames) for call in calls if not call.cold}, (
        "the shapes of the first calls are repeated"
    )


def test_calls_cover_every_captured_shape() -> None:
    called = {(call.rows, call.frames) for call in plan_calls(LENGTHS, 64)}
    assert {(rows, frames) for rows, frames in Buckets(MAX_BATCH, MAX_FRAMES).shapes if frames in LENGTHS} <= called
    assert {(rows, frames) for rows in range(1, 9) for frames in LENGTHS} <= called


def test_batches_have_rows_of_equal_and_of_different_histories(golden: Golden) -> None:
    codec = FakeCodec(golden)
    prove(codec)
    assert (0,) in codec.histories
    assert max(len(histories) for histories in codec.histories) > 3
    assert any(order != sorted(order) for order in codec.orders), "slots change rows"


def test_a_proof_does_not_depend_on_what_the_slots_hold(golden: Golden) -> None:
    codec = FakeCodec(golden)
    codec.states[:] = 7
    prove(codec)
    prove(codec)


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_runs_with_few_slots(golden: Golden, rows: int) -> None:
    codec = FakeCodec(golden)
    prove(codec, slots=rows)
    assert max(called for called, _ in codec.calls) == rows


def only(shape: tuple[int, int], corrupt: Corruption) -> Corruption:
    return lambda pcm, chunks: corrupt(pcm, chunks) if chunks.codes.shape[:2] == shape else pcm


def half(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
    return pcm // 2


def silent_row(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
    return np.concatenate([pcm[:-1], np.zeros_like(pcm[-1:])])


def swapped(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
    return pcm[::-1]


def begun_with(pcm: np.ndarray, *samples: int) -> np.ndarray:
    """The first row begins with other samples."""
    pcm = pcm.copy()
    pcm[0, : len(samples)] = samples
    return pcm


def overflow(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
    return begun_with(pcm, NO_SAMPLE, 0)


def denied(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
    return begun_with(pcm, NO_SAMPLE, NO_SAMPLE)


def shorter(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
    return pcm[:, :-1]


def refuse(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
    raise RequestError("code2wav: the plan has no profile for this shape, and much more could be said of it")


class Stale:
    """Returns the samples of the previous call; with `of_shape`, of the previous call of equal shape, as a CUDA graph
    with stale inputs does."""

    def __init__(self, of_shape: bool) -> None:
        self._of_shape = of_shape
        self._kept: dict[tuple[int, ...], np.ndarray] = {}
        self._last = np.zeros(0, np.int16)

    def __call__(self, pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
        stale = self._kept.get(pcm.shape, pcm) if self._of_shape else np.resize(self._last, pcm.shape)
        self._kept[pcm.shape] = self._last = pcm
        return stale


@pytest.mark.parametrize(
    ("corrupt", "detail"),
    [
        (half, "8x4: 6.0 dB"),
        (silent_row, "8x4: 0.0 dB"),
        (swapped, "8x4: -"),
        (overflow, "8x4: the codec gave no finite audio"),
        (denied, "8x4: the codec has given this stream's row to anothe…"),
        (shorter, "8x4: -inf dB"),
        (refuse, "8x4: the plan has no profile for this shape, and muc…"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_names_only_the_wrong_shape(golden: Golden, corrupt: Corruption, detail: str) -> None:
    message = refusal(golden, only((8, 4), corrupt))
    assert message.startswith("code2wav differs from its golden cases at 1 of ")
    assert detail in message
    assert "; at least 40.0 dB is required. Export the codec again on this machine" in message


@pytest.mark.parametrize("of_shape", [False, True])
def test_refuses_stale_samples(golden: Golden, of_shape: bool) -> None:
    assert "8x4: " in refusal(golden, only((8, 4), Stale(of_shape)))
    assert "more; at least" in refusal(golden, Stale(of_shape))


def test_refuses_noise_and_names_only_the_worst_shapes(golden: Golden) -> None:
    random = np.random.default_rng(0)
    message = refusal(golden, lambda pcm, chunks: (pcm + random.normal(0, 80, pcm.shape)).astype(np.int16))
    assert message.count(" dB,") == 10
    # 4000 over 80 is 34 dB; comparing two noisy rows costs another 3 dB.
    assert re.search(r"SNR\): \d+x1: 3[01]\.\d dB, ", message)
    assert "more; at least 40.0 dB" in message
    assert len(message) < 500
    prove(FakeCodec(golden, lambda pcm, chunks: (pcm + random.normal(0, 20, pcm.shape)).astype(np.int16)))


def test_refuses_different_samples_in_equal_rows(golden: Golden) -> None:
    """Rows that differ from the golden samples by 41.5 dB each, in opposite directions."""

    def opposite(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
        error = np.where(chunks.slots % 2 == 0, 33, -33)[:, None] * np.where(np.arange(pcm.shape[1]) % 2, 1, -1)
        samples: np.ndarray = pcm + error
        return samples.astype(np.int16)

    message = refusal(golden, opposite)
    assert " 1x" not in message
    assert "35." in message


def test_refuses_a_codec_that_loses_its_state(golden: Golden) -> None:
    """The first call's samples are correct; later calls restart the utterance."""

    def forget(pcm: np.ndarray, chunks: Chunks) -> np.ndarray:
        frames = chunks.codes.shape[1]
        fresh = np.stack([golden.pcm[0, : frames * SAMPLES_PER_FRAME]] * len(chunks))
        return np.where(chunks.first[:, None], pcm, fresh)

    assert re.search(r"at 9\d of 100 shapes", refusal(golden, forget))


def test_calls_each_chunk_length_regardless_of_the_time_limit(golden: Golden) -> None:
    codec = FakeCodec(golden)
    prove(codec, seconds=1e-9)
    assert codec.calls == [(1, frames) for frames in LENGTHS]


def test_skips_calls_that_exceed_the_time_limit(golden: Golden, caplog: pytest.LogCaptureFixture) -> None:
    """A codec that takes one second per row and frame, and a limit of 100 seconds."""
    codec = FakeCodec(golden)
    proof = CodecProof(codec, golden, clock=lambda: float(sum(rows * frames for rows, frames in codec.calls)))
    with caplog.at_level(logging.INFO):
        proof.run(LENGTHS, SLOTS, 100.0, threading.Event())
    spent = sum(rows * frames for rows, frames in codec.calls)
    assert 90 < spent <= 100
    assert len({rows for rows, _ in codec.calls}) > 2, "calls within the limit are made"
    assert f"{len(codec.calls)} of " in caplog.text


def test_stops_when_the_server_shuts_down(golden: Golden) -> None:
    with pytest.raises(Unavailable, match="shutting down"):
        prove(FakeCodec(golden), closed=True)


def test_golden_cases_round_trip(golden: Golden, tmp_path: Path) -> None:
    golden.write(tmp_path / GOLDEN)
    read = Golden.read(tmp_path, "digest")
    np.testing.assert_array_equal(read.codes, golden.codes)
    np.testing.assert_array_equal(read.pcm, golden.pcm)
    assert (read.snr_db, read.codec_digest, read.codes.dtype) == (40.0, "digest", np.int32)


def other_digest(path: Path) -> None:
    golden = make_golden()
    Golden(golden.codes, golden.pcm, 40.0, "another").write(path)


def truncated(path: Path) -> None:
    make_golden().write(path)
    path.write_bytes(path.read_bytes()[:1000])


def without_samples(path: Path) -> None:
    save_file({"codes": make_golden().codes}, path)


def too_short(path: Path) -> None:
    golden = make_golden()
    Golden(golden.codes, golden.pcm[:, :-1], 40.0, "digest").write(path)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda path: None, "missing; `python -m export` of the checkpoint writes it"),
        (other_digest, "codec_digest is another, the checkpoint has digest: export .* again"),
        (truncated, "unreadable: .* export this checkpoint's codec again"),
        (without_samples, "unreadable: .* export this checkpoint's codec again"),
        (too_short, r"unreadable: int16 samples \[3, 59519\] for codes \[3, 31, 16\]: export"),
    ],
)
def test_names_an_invalid_golden_file(corrupt: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    corrupt(tmp_path / GOLDEN)
    with pytest.raises(CheckpointError, match=message) as refused:
        Golden.read(tmp_path, "digest")
    assert str(refused.value).startswith(str(tmp_path / GOLDEN))
