"""The talker's client of the codec: the rows that its chunks name, references of voices, and rows without audio."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from qwen3_tts_engine.codec.client import Code2Wav, without_audio
from qwen3_tts_engine.codec.contract import (
    CHUNK_FRAMES,
    MAX_BATCH,
    NO_SAMPLE,
    NUM_ROWS,
    PUBLIC_ROWS,
    ZERO_ROW,
    RowCounts,
)
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.core.streams import Status
from qwen3_tts_engine.request import RequestError
from qwen3_tts_engine.scheduling.chunker import Chunker
from qwen3_tts_engine.scheduling.slot_table import SlotTable
from qwen3_tts_engine.voice import Voice
from scripts.lab.simulation import audible
from tests.fakes.codec_layers import pcm_of
from tests.fakes.scripted import Listener, make_stream, start_in_slot

FRAMES = 2
WINDOW = 71
KEY, OTHER_KEY = 5, 6
COUNTS = RowCounts(slots=4, voices=3)


class FakeCalls:
    """code2wav's rows, whose states count the frames decoded since row 0; samples of a chunk begin with that count."""

    def __init__(self) -> None:
        self.counts, self.keys = np.zeros(NUM_ROWS, np.int64), np.zeros(NUM_ROWS, np.int64)
        self.overflowing: set[int] = set()
        """Codes whose chunks have no finite audio."""
        self.failing: set[int] = set()
        """Codes whose calls fail."""
        self.codes: list[np.ndarray] = []
        self.places: list[np.ndarray] = []

    def __call__(self, codes: np.ndarray, places: np.ndarray) -> np.ndarray:
        assert (codes.dtype, places.dtype) == (np.int32, np.int32)
        self.codes.append(codes)
        self.places.append(places)
        if self.failing & set(codes[:, 0, 0].tolist()):
            raise RequestError("code2wav: its process ended")
        pcm = np.zeros((len(codes), codes.shape[1] * SAMPLES_PER_FRAME), np.int16)
        for samples, chunk, place in zip(pcm, codes, places.tolist(), strict=True):
            samples[:2] = self._advance(chunk, *place)
        return pcm

    def _advance(self, codes: np.ndarray, before: int, after: int, history: int, key: int) -> tuple[int, int]:
        if after < NUM_ROWS - PUBLIC_ROWS:
            self.keys[after] = self.keys[after] or key
        if after == ZERO_ROW or self.keys[after] != key or (before != ZERO_ROW and self.keys[before] != key):
            return NO_SAMPLE, NO_SAMPLE
        count = int(self.counts[before])
        if before != after or history:
            self.counts[after] = count + len(codes)
        return (NO_SAMPLE, 0) if codes[0, 0] in self.overflowing else (count, 0)

    def forget(self) -> None:
        self.codes.clear()
        self.places.clear()


@pytest.fixture
def calls() -> FakeCalls:
    return FakeCalls()


def claimed(calls: FakeCalls, longest: int = CHUNK_FRAMES[-1], counts: RowCounts = COUNTS) -> Code2Wav:
    """A client that owns its rows, whose claims are forgotten."""
    codec = Code2Wav(calls, KEY, counts, WINDOW, longest)
    codec.claim()
    calls.forget()
    return codec


def chunks_of(*rows: int, frames: int = FRAMES) -> Chunks:
    """The first chunks of streams in slots 0, 1, ..; all codes of a row have the given value."""
    count = len(rows)
    codes = np.repeat(np.array(rows, np.int32), frames * 16).reshape(count, frames, 16)
    zeros = np.zeros(count, np.int32)
    streams = [make_stream(str(row), Listener()) for row in range(count)]
    return Chunks(
        streams, np.arange(count), codes, zeros, np.full(count, frames), zeros.astype(float), zeros == 0, zeros > 0
    )


def later(chunks: Chunks, history: int) -> Chunks:
    """Chunks of the same streams after `history` frames."""
    count = len(chunks)
    return replace(chunks, history=np.full(count, history, np.int32), first=np.zeros(count, bool))


def spoken_by(chunks: Chunks, **voices: Voice) -> Chunks:
    """First chunks whose streams of the given rows (`row_1=voice`) speak in a voice, after its reference."""
    history = chunks.history.copy()
    for name, voice in voices.items():
        row = int(name.removeprefix("row_"))
        chunks.streams[row].voice = voice
        history[row] = voice.num_frames
    return replace(chunks, history=history)


def voice_of(frames: int, code: int = 0) -> Voice:
    return Voice(np.zeros(4, np.float32), np.full((frames, 16), code, np.int32), "text")


def test_only_rows_with_codes_out_of_range_fail(calls: FakeCalls) -> None:
    pcm, failed = claimed(calls).decode(chunks_of(0, 2048, 2047, -1))
    assert failed.keys() == {1, 3}
    assert "0..2047" in str(failed[1])
    assert pcm.shape == (4, FRAMES * SAMPLES_PER_FRAME)
    [codes] = calls.codes
    assert (codes.min(), codes.max()) == (0, 2047)


def test_a_first_chunk_reads_the_zero_row_and_a_later_one_what_the_last_wrote(calls: FakeCalls) -> None:
    codec = claimed(calls)
    chunks = replace(chunks_of(0, 0, 0), slots=np.array([2, 0, 3]))
    codec.decode(chunks)
    codec.decode(replace(later(chunks, FRAMES), first=np.array([False, True, False])))
    begun, continued = (places[:, :2] for places in calls.places)
    written = begun[:, 1]
    assert len(set(written.tolist())) == 3
    assert begun[:, 0].tolist() == [ZERO_ROW] * 3
    assert continued[:, 0].tolist() == [written[0], ZERO_ROW, written[2]]
    assert (continued[:, 1] == written).all()


def test_a_slot_keeps_its_row_whatever_the_order_of_the_chunks(calls: FakeCalls) -> None:
    codec = claimed(calls)
    codec.decode(chunks_of(0, 0, 0, 0))
    turned = replace(later(chunks_of(0, 0, 0, 0), FRAMES), slots=np.array([3, 2, 1, 0]))
    codec.decode(turned)
    assert (calls.places[1][:, 1] == calls.places[0][::-1, 1]).all()


def test_history_ends_at_the_codecs_window(calls: FakeCalls) -> None:
    codec = claimed(calls)
    chunks = later(chunks_of(0, 0, 0, 0), 0)
    codec.decode(replace(chunks, history=np.array([1, WINDOW, WINDOW + 1, 9000], np.int32)))
    assert calls.places[0][:, 2].tolist() == [1, WINDOW, WINDOW, WINDOW]


def test_every_place_carries_the_talkers_key(calls: FakeCalls) -> None:
    codec = Code2Wav(calls, KEY, COUNTS, WINDOW, CHUNK_FRAMES[-1])
    codec.claim()
    codec.decode(spoken_by(chunks_of(0, 0), row_1=voice_of(20)))
    codec.decode(later(chunks_of(0, 0), FRAMES))
    assert {key for places in calls.places for key in places[:, 3].tolist()} == {KEY}


def test_a_claim_passes_over_the_rows_of_others_and_changes_no_state(calls: FakeCalls) -> None:
    calls.keys[[1, 3]] = OTHER_KEY
    calls.counts[:] = 40
    codec = Code2Wav(calls, KEY, COUNTS, WINDOW, CHUNK_FRAMES[-1])
    codec.claim()
    assert np.flatnonzero(calls.keys == KEY).tolist() == [2, 4, 5, 6, 7, 8, 9]
    assert (calls.counts == 40).all()
    assert all(len(codes) <= MAX_BATCH for codes in calls.codes)


def test_a_talker_that_starts_again_gets_its_rows_back(calls: FakeCalls) -> None:
    claimed(calls)
    before = calls.keys.copy()
    claimed(calls)
    assert (calls.keys == before).all()


def test_a_stream_of_a_voice_starts_from_its_row_regardless_of_what_its_slot_held(calls: FakeCalls) -> None:
    """Rows: a clone's first chunk, that of a stream of its x-vector alone, and a later chunk."""
    codec, voice = claimed(calls), voice_of(80)
    codec.decode(chunks_of(0, 0, 0, 0, frames=8))
    chunks = spoken_by(chunks_of(0, 0, 0), row_0=voice, row_1=voice.alone())
    history, first = np.array([80, 0, 8], np.int32), np.array([True, True, False])
    pcm, failed = codec.decode(replace(chunks, slots=np.array([2, 0, 3]), history=history, first=first))
    assert not failed
    assert pcm[:, 0].tolist() == [80, 0, 8], "frames decoded before"
    places, slots = calls.places[-1], calls.places[0][:, 1]
    assert places[:, 2].tolist() == [WINDOW, 0, 8]
    assert places[:, 1].tolist() == slots[[2, 0, 3]].tolist()
    assert places[0, 0] not in slots
    pcm, _ = codec.decode(spoken_by(chunks_of(0), row_0=voice))
    assert pcm[0, 0] == 80, "the state of the voice stays unchanged"


def test_a_clones_history_starts_with_its_reference_frames() -> None:
    """The chunker's history of a slot whose voice has 80 frames."""
    table = SlotTable(2, 64, 16)
    clone = make_stream("clone", Listener())
    clone.voice = voice_of(80)
    for slot, stream in enumerate((clone, make_stream("other", Listener()))):
        start_in_slot(table, slot, stream)
    chunker = Chunker(table, 1, lambda streams: 0.0)
    table.codes[:] = 0
    for frame in range(3):
        table.written += 1
        chunks = chunker.next_chunks(now=1.0)
        assert chunks is not None
        assert dict(zip(chunks.slots.tolist(), chunks.history.tolist(), strict=True)) == {0: 80 + frame, 1: frame}
        assert chunks.first.tolist() == [frame == 0] * 2
        chunker.done(chunks, audible(chunks), now=1.0)
    table.move(clone, Status.ENDED)
    table.close(clone)
    start_in_slot(table, 0, make_stream("next", Listener()))
    assert table.reference_frames[0] == 0


@pytest.mark.parametrize("longest", CHUNK_FRAMES)
def test_a_reference_is_decoded_in_verified_chunk_lengths(calls: FakeCalls, longest: int) -> None:
    codec, voice = claimed(calls, longest), voice_of(90)
    assert voice.codes is not None
    voice.codes[:] = np.arange(90)[:, None]
    codec.prime(voice)
    assert {codes.shape[1] for codes in calls.codes} <= {length for length in CHUNK_FRAMES if length <= longest}
    decoded = 0
    for index, (codes, [[before, after, history, key]]) in enumerate(zip(calls.codes, calls.places, strict=True)):
        assert codes[0, :, 0].tolist() == list(range(decoded, decoded + codes.shape[1]))
        assert before == (after if index else ZERO_ROW)
        assert (history, key) == (min(decoded, WINDOW), KEY)
        decoded += codes.shape[1]
    assert decoded == 90
    assert calls.counts[after] == 90


def test_a_prepared_voice_is_not_decoded_again(calls: FakeCalls) -> None:
    codec, voice = claimed(calls), voice_of(20)
    codec.prime(voice)
    calls.forget()
    codec.prime(voice)
    pcm, failed = codec.decode(spoken_by(chunks_of(0, 0), row_0=voice, row_1=voice))
    assert not failed
    assert pcm[:, 0].tolist() == [20, 20]
    assert len(calls.codes) == 1


def test_a_voice_that_is_not_in_context_takes_no_row(calls: FakeCalls) -> None:
    codec = claimed(calls, counts=RowCounts(slots=4, voices=0))
    codec.prime(voice_of(20).alone())
    _, failed = codec.decode(spoken_by(chunks_of(0), row_0=voice_of(20).alone()))
    assert not failed
    assert calls.places[0][0, 0] == ZERO_ROW


@pytest.mark.parametrize("mark", ["overflowing", "failing"])
def test_a_voice_that_cannot_be_decoded_fails_its_own_stream_until_it_can(calls: FakeCalls, mark: str) -> None:
    codec, broken, good = claimed(calls), voice_of(20, code=7), voice_of(30)
    codes: set[int] = getattr(calls, mark)
    codes.add(7)
    chunks = spoken_by(chunks_of(0, 0, 0, 0), row_1=broken, row_2=good, row_3=broken)
    pcm, failed = codec.decode(chunks)
    assert failed.keys() == {1, 3}
    reason = {"overflowing": "no finite audio", "failing": "its process ended"}[mark]
    assert all(reason in str(error) for error in failed.values())
    assert pcm[[0, 2], 0].tolist() == [0, 30], "the others have audio"
    with pytest.raises(RequestError, match=reason):
        codec.prime(broken)
    codes.clear()
    pcm, failed = codec.decode(chunks)
    assert not failed
    assert pcm[:, 0].tolist() == [0, 20, 30, 20]


def test_failed_voices_leave_their_rows_to_others(calls: FakeCalls) -> None:
    codec = claimed(calls)
    calls.failing.add(7)
    for _ in range(2 * COUNTS.voices):
        with pytest.raises(RequestError):
            codec.prime(voice_of(20, code=7))
    voices = {f"row_{i}": voice_of(10 + i) for i in range(COUNTS.voices)}
    pcm, failed = codec.decode(spoken_by(chunks_of(0, 0, 0), **voices))
    assert not failed
    assert pcm[:, 0].tolist() == [10, 11, 12]


def test_marked_rows_are_errors_and_others_have_audio(calls: FakeCalls) -> None:
    codec = claimed(calls)
    codec.decode(chunks_of(0, 0, 0, 0))
    calls.keys[calls.places[0][2, 1]] = OTHER_KEY
    calls.overflowing.add(7)
    pcm, failed = codec.decode(later(chunks_of(0, 7, 0, 0), FRAMES))
    assert failed.keys() == {1, 2}
    assert str(failed[1]) == "the codec gave no finite audio"
    assert "row to another caller: was code2wav loaded again?" in str(failed[2])
    assert pcm[[0, 3], 0].tolist() == [FRAMES] * 2


def test_an_invalid_code_is_the_reason_even_where_the_codec_gave_no_audio(calls: FakeCalls) -> None:
    codec = claimed(calls)
    calls.overflowing.add(2047)
    _, failed = codec.decode(chunks_of(2048))
    assert "0..2047" in str(failed[0])


def test_only_rows_with_nonfinite_samples_are_marked() -> None:
    waveform = torch.tensor([[0.5, 2.0], [0.0, torch.nan], [torch.inf, 0.0], [-2.0, -0.25]])
    pcm = pcm_of(waveform)
    failed = without_audio(pcm)
    assert failed.keys() == {1, 2}
    assert {str(error) for error in failed.values()} == {"the codec gave no finite audio"}
    np.testing.assert_array_equal(pcm[[0, 3]], [[16384, 32767], [-32767, -8192]])
