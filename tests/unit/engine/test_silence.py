"""What listeners get of utterances that begin or end in silence, from the engine with all its threads."""

from collections.abc import Callable

import numpy as np
import pytest

from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from qwen3_tts_engine.codec.sound import CUT, MAX_WITHHELD
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.core.streams import FinishReason
from qwen3_tts_engine.metrics import TTFA, UTTERANCES
from qwen3_tts_engine.request import RequestError
from tests.fakes.scripted import Listener, ScriptedCodec, make_stream
from tests.unit.engine.test_engine import WAIT, Harness

FRAMES, STREAMS = 40, 6
MAX_SILENT = 10


def frame_pcm(seed: int, frame: int, is_loud: bool) -> np.ndarray:
    random = np.random.default_rng((seed, frame))
    return (random.uniform(-1, 1, SAMPLES_PER_FRAME) * (8000 if is_loud else 50)).astype(np.int16)


class VoicedCodec(ScriptedCodec):
    """Decodes each frame to noise that depends on its stream and index, loud where `is_loud`."""

    def __init__(self, is_loud: Callable[[int], bool]) -> None:
        super().__init__()
        self.is_loud = is_loud

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        rows = [[frame_pcm(seed, frame, self.is_loud(frame)) for seed, frame, *_ in row] for row in chunks.codes]
        return np.array(rows).reshape(len(rows), -1), {}

    def waveform(self, seed: int, frames: int) -> np.ndarray:
        return np.concatenate([frame_pcm(seed, frame, self.is_loud(frame)) for frame in range(frames)])


@pytest.fixture(params=[False, True], ids=["overlapping", "in-turn"])
def take_turns(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def speak(
    take_turns: bool,
    is_loud: Callable[[int], bool],
    trims: bool = True,
    max_frames: int = FRAMES,
    tick_seconds: float = 0.0,
) -> list[Listener]:
    """Listeners of streams with seeds 0, 1, ...; checks that what each got is the rest of its waveform."""
    codec = VoicedCodec(is_loud)
    harness = Harness(lookahead=1, take_turns=take_turns, max_silent_frames=MAX_SILENT, codec=codec)
    harness.runner.tick_seconds = tick_seconds
    harness.engine.start()
    listeners = [Listener() for _ in range(STREAMS)]
    for seed, listener in enumerate(listeners):
        stream = make_stream(str(seed), listener, seed, max_frames)
        stream.is_withheld = trims
        harness.engine.submit(stream)
    for seed, listener in enumerate(listeners):
        assert listener.ended.wait(WAIT)
        assert listener.error is None
        assert listener.summary is not None
        whole = codec.waveform(seed, listener.summary.frames)
        assert (np.concatenate(listener.pcm) == whole[listener.summary.withheld_samples :]).all()
    harness.engine.close()
    assert harness.is_empty()
    readings = harness.engine.recorder.take()
    assert len(readings.observed[TTFA.name]) == STREAMS
    [(_, reason)] = [key for key in readings.counted if key[0] == UTTERANCES.name]
    assert readings.counted[UTTERANCES.name, reason] == STREAMS
    return listeners


@pytest.mark.parametrize("silent", [0, 1, 3])
def test_leading_silence_is_not_sent(take_turns: bool, silent: int) -> None:
    for listener in speak(take_turns, lambda frame: frame >= silent):
        assert listener.summary is not None
        assert (silent - 1) * SAMPLES_PER_FRAME < listener.summary.withheld_samples <= silent * SAMPLES_PER_FRAME
        assert listener.summary.reason is FinishReason.LENGTH


def test_leading_silence_is_sent_on_request(take_turns: bool) -> None:
    for listener in speak(take_turns, lambda frame: frame >= 3, trims=False):
        assert listener.summary is not None
        assert (listener.summary.withheld_samples, listener.summary.frames) == (0, FRAMES)


def test_half_a_second_of_an_utterance_without_sound_is_withheld(take_turns: bool) -> None:
    for listener in speak(take_turns, lambda frame: False):
        assert listener.summary is not None
        assert 0 <= MAX_WITHHELD - listener.summary.withheld_samples <= CUT
        assert listener.summary.frames == FRAMES


def test_silence_after_speech_ends_an_utterance(take_turns: bool) -> None:
    # A second of ticks, in which the codec decodes a few frames on any machine.
    for listener in speak(take_turns, lambda frame: frame < 5, max_frames=250, tick_seconds=0.004):
        assert listener.summary is not None
        assert listener.summary.reason is FinishReason.SILENCE
        # A chunk has up to eight frames, and the one that reaches the limit is sent.
        assert 5 + MAX_SILENT <= listener.summary.frames < 5 + MAX_SILENT + 8


def test_a_short_utterance_without_sound_is_sent_whole(take_turns: bool) -> None:
    codec = VoicedCodec(lambda frame: False)
    harness = Harness(lookahead=1, take_turns=take_turns, codec=codec)
    harness.engine.start()
    listener = Listener()
    stream = make_stream("0", listener, 0, max_frames=4)
    stream.is_withheld = True
    harness.engine.submit(stream)
    assert listener.ended.wait(WAIT)
    assert (np.concatenate(listener.pcm) == codec.waveform(0, 4)).all()
    assert listener.summary is not None
    assert listener.summary.withheld_samples == 0
    harness.engine.close()
