"""The codec client: invalid codes, nonfinite waveforms and initial states."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from qwen3_tts_engine.codec.clients import ModelCodec, SharedStatesCodec
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES
from qwen3_tts_engine.codec.states import NUM_EXTRA, CodecStates, invalid_codes, to_pcm
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.core.streams import Status
from qwen3_tts_engine.interfaces import ModelCall
from qwen3_tts_engine.scheduling.chunker import Chunker
from qwen3_tts_engine.scheduling.slot_table import SlotTable
from qwen3_tts_engine.voice import Voice
from scripts.benchmarks.simulation import audible
from tests.fakes.scripted import Listener, make_stream, start_in_slot

FRAMES = 2


def chunks_of(*rows: int) -> Chunks:
    """One chunk per row; all codes of a row have the given value."""
    count = len(rows)
    codes = np.repeat(np.array(rows, np.int32), FRAMES * 16).reshape(count, FRAMES, 16)
    zeros = np.zeros(count, np.int32)
    streams = [make_stream(str(row), Listener()) for row in range(count)]
    return Chunks(
        streams, np.arange(count), codes, zeros, np.full(count, FRAMES), zeros.astype(float), zeros == 0, zeros > 0
    )


def test_only_rows_with_codes_out_of_range_fail() -> None:
    chunks = chunks_of(0, 2048, 2047, -1)
    assert invalid_codes(chunks).keys() == {1, 3}
    assert "0..2047" in str(invalid_codes(chunks)[1])
    states = CodecStates(torch.zeros(5, 8), 71)
    codes = states.codes(chunks)
    assert codes.min() == 0
    assert codes.max() == 2047


def test_a_stream_starts_from_its_voices_state_regardless_of_its_slots_previous_stream() -> None:
    """Rows: a clone's first chunk, another stream's first chunk and a later chunk, in slots that held other streams."""
    states = CodecStates(torch.zeros(5, 8), 71)
    states.store(states.rows(chunks_of(0, 0, 0, 0)), torch.full((4, 8), 9.0))
    warm = Voice(np.zeros(4, np.float32), np.zeros((80, 16), np.int32), "text", torch.arange(8.0))
    streams = [make_stream(name, Listener()) for name in "abc"]
    streams[0].voice = warm
    streams[1].voice = warm.alone()
    history, first = np.array([80, 0, 5], np.int32), np.array([True, True, False])
    chunks = replace(chunks_of(0, 0, 0), streams=streams, slots=np.array([2, 0, 3]), history=history, first=first)
    state = states.gather(states.rows(chunks))
    torch.testing.assert_close(state, torch.stack([torch.arange(8.0), torch.zeros(8), torch.full((8,), 9.0)]))
    assert states.history(chunks).flatten().tolist() == [71, 0, 5]
    states.store(states.rows(chunks), state + 1)
    assert torch.equal(warm.state, torch.arange(8.0)), "the state of the voice stays unchanged"


def test_a_clones_history_starts_with_its_reference_frames() -> None:
    """The chunker's history of a slot whose voice has 80 frames."""
    table = SlotTable(2, 64, 16)
    clone = make_stream("clone", Listener())
    clone.voice = Voice(np.zeros(4, np.float32), np.zeros((80, 16), np.int32), "text", torch.zeros(8))
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


def test_only_rows_with_nonfinite_samples_fail() -> None:
    waveform = torch.tensor([[0.5, 2.0], [0.0, torch.nan], [torch.inf, 0.0], [-2.0, -0.25]])
    pcm, failed = to_pcm(waveform)
    assert failed.keys() == {1, 2}
    np.testing.assert_array_equal(pcm[[0, 3]], [[16384, 32767], [-32767, -8192]])


@pytest.mark.parametrize("longest", CHUNK_FRAMES)
def test_a_reference_is_decoded_in_verified_chunk_lengths(longest: int) -> None:
    calls = []

    def answer(call: ModelCall) -> list[torch.Tensor]:
        """Returns a state that counts the decoded frames."""
        inputs = call.inputs
        calls.append((inputs["codes"].shape[1], int(inputs["history"]), int(inputs["state"][0, 0])))
        return [inputs["state"] + inputs["codes"].shape[1]]

    codec = ModelCodec(CodecStates(torch.zeros(2, 8), 71), answer)
    assert codec.state_after(torch.zeros(1, 90, 16, dtype=torch.int32), longest).tolist() == [90] * 8
    assert {length for length, _, _ in calls} <= {length for length in CHUNK_FRAMES if length <= longest}
    assert all(history == min(decoded, 71) for _, history, decoded in calls)


def test_a_reference_is_decoded_in_the_spare_row_of_shared_states() -> None:
    states = torch.zeros(2 + NUM_EXTRA, 8)
    history = []

    def answer(call: ModelCall) -> list[torch.Tensor]:
        """A state counts the decoded frames."""
        inputs = call.inputs
        before, after, decoded = inputs["places"][0].tolist()
        history.append(decoded)
        states[after] = states[before] + inputs["codes"].shape[1]
        return [torch.zeros(1, inputs["codes"].shape[1] * 1920, dtype=torch.int16)]

    codec = SharedStatesCodec(CodecStates(states, 71, "address"), answer)
    first = codec.state_after(torch.zeros(1, 90, 16, dtype=torch.int32), 16)
    second = codec.state_after(torch.zeros(1, 3, 16, dtype=torch.int32), 16)
    assert (first.tolist(), second.tolist()) == ([90] * 8, [3] * 8)
    assert not states[:2].any(), "a slot's state"
    assert not states[-1].any(), "the state of new streams"
    assert history == [0, 16, 32, 48, 64, 71, 71, 0, 2]
