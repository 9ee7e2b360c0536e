"""Streamed text and text in several parts give the same codes as whole texts, on the CPU engine."""

import itertools
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from export.modules.codec import CodecStep
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec.client import without_audio
from qwen3_tts_engine.codec.contract import max_history
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.engine.engine import Engine
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.frontend.sequences import Sequences
from qwen3_tts_engine.frontend.tokenizer import TextTokenizer
from qwen3_tts_engine.interfaces import CodecClient
from qwen3_tts_engine.request import RequestError, SynthesisRequest
from qwen3_tts_engine.startup import build_engine
from qwen3_tts_engine.talker.loader import load_runner
from tests.fakes.codec_layers import pcm_of
from tests.fakes.scripted import Listener
from tests.oracle.reference import reference_codec
from tests.oracle.speaking import CodeRecorder, begin_sequence

WAIT = 120.0
CPU = torch.device("cpu")
VOICE = {"speaker": "ryan", "language": "english"}
TEXTS = [
    "Hello there, this is a test of speech that is made while its text still comes.",
    "今天天气很好，我们去公园吧。明天再说！",
    "  One. ",
    "a",
    "Two sentences here. The second one is a little longer than the first, and it ends now.",
]
SENTENCES = [
    "The first sentence is here.",
    "A second one follows it.",
    "Now comes the third one!",
    "And is this the last one?",
]
LONG = " ".join(SENTENCES)


# The cap allows each part a few frames after its text.
BRIEF = {"base_frames": 9, "frames_per_text_token": 1}


class LocalCodec(CodeRecorder):
    """Decodes streams without references with the PyTorch step and a state for each slot; records codes."""

    def __init__(self, checkpoint: Checkpoint, slots: int) -> None:
        super().__init__()
        self._step = CodecStep.from_checkpoint(checkpoint).eval()
        self._states = torch.zeros(slots, self._step.state_size)
        self._max_history = max_history(checkpoint.speech_tokenizer.decoder_config)

    @torch.inference_mode()
    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        super().decode(chunks)
        slots = torch.from_numpy(chunks.slots)
        self._states[slots[torch.from_numpy(chunks.first)]] = 0
        history = torch.from_numpy(np.minimum(chunks.history, self._max_history).astype(np.int32))[:, None]
        waveform, self._states[slots] = self._step(torch.from_numpy(chunks.codes), self._states[slots], history)
        pcm = pcm_of(waveform)
        return pcm, without_audio(pcm)


class EngineHarness:
    """An engine on the CPU with its recorder, prompt builder and sequences."""

    def __init__(self, folder: Path, codec: CodecClient | None = None, lookahead: int = 0, **settings: Any) -> None:
        self.checkpoint = Checkpoint.open(str(folder))
        sizes = {"max_streams": 8, "max_text_tokens": 256, "max_frames_limit": 512, "talker_proof_seconds": 0}
        self.config = EngineConfig.model_validate({"checkpoint": str(folder), **sizes, **settings})
        self.recorder = CodeRecorder()
        self.prompts = PromptBuilder(self.checkpoint, self.config)
        runner = load_runner(self.checkpoint, self.config, CPU)
        runner.lookahead = lookahead
        self.engine: Engine = build_engine(self.config, self.prompts.num_codebooks, runner, codec or self.recorder)
        self.sequences = Sequences(self.engine, self.prompts, idle_seconds=60, max_characters=4096)
        self._keys = itertools.count()

    def key(self) -> str:
        return str(next(self._keys))

    def submit(self, request: SynthesisRequest, listener: Listener, key: str) -> None:
        self.engine.submit(self.prompts.stream(request, listener, key))

    def synthesise(self, text: str, **fields: Any) -> np.ndarray:
        key, listener = self.key(), Listener()
        self.submit(SynthesisRequest.of({"text": text, **VOICE, **fields}), listener, key)
        assert listener.ended.wait(WAIT)
        assert listener.error is None
        return self.recorder.of(key)

    def start(self, sequence_id: int, text: str, last: bool = False, **fields: Any) -> tuple[str, Listener]:
        key, listener = self.key(), Listener()
        request = SynthesisRequest.of({"text": text, **VOICE, **fields})
        begin_sequence(self.sequences, sequence_id, request, listener, key, last)
        return key, listener


class PieceSender:
    """Sends the pieces of a text with pauses, from its own thread."""

    # Triton calls `execute` for one request at a time.
    _turn = threading.Lock()

    def __init__(self, harness: EngineHarness, number: int, pieces: list[str], options: dict[str, Any]) -> None:
        self._harness, self._number, self._pieces = harness, number, pieces
        with self._turn:
            self._key, self._listener = harness.start(number, pieces[0], last=len(pieces) == 1, **options)
        self._thread = threading.Thread(target=self._send)
        self._thread.start()

    def codes(self) -> np.ndarray:
        self._thread.join(WAIT)
        assert self._listener.ended.wait(WAIT)
        assert (self._listener.error, self._listener.ends) == (None, 1)
        return self._harness.recorder.of(self._key)

    def _send(self) -> None:
        for number, piece in enumerate(self._pieces[1:], 2):
            time.sleep(0.02 * (number % 3 == 0))
            with self._turn:
                self._harness.sequences.append(self._number, piece, number == len(self._pieces))


@contextmanager
def running_engine(folder: Path, **settings: Any) -> Iterator[EngineHarness]:
    harness = EngineHarness(folder, **settings)
    harness.engine.start()
    yield harness
    harness.engine.scheduler.check_integrity()
    scheduler = harness.engine.scheduler
    assert (scheduler.slots.num_used, scheduler.pages.num_used, len(scheduler.live)) == (0, 0, 0)
    harness.engine.close()


def cut(text: str, rng: random.Random) -> list[str]:
    at = sorted(rng.choices(range(len(text) + 1), k=rng.randint(0, 8)))
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]


@pytest.mark.parametrize("lookahead", [0, 1], ids=["read-at-once", "read-one-tick-late"])
# Rounding depends on the batch size; with this seed it changes no sampled code.
@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"seed": 8}], ids=["greedy", "sampled"])
def test_pieces_give_the_codes_of_the_whole_text(
    tiny_checkpoint: Path, lookahead: int, options: dict[str, Any]
) -> None:
    """Concurrent sequences, cut at random and sent with random pauses, beside whole requests."""
    settings = {"text_layout": "streaming", "lookahead": lookahead, "base_frames": 20, "frames_per_text_token": 2}
    rng = random.Random(lookahead)
    with running_engine(tiny_checkpoint, **settings) as harness:
        expected = [harness.synthesise(text, **options) for text in TEXTS]

        for _ in range(3):
            senders = [PieceSender(harness, number, cut(text, rng), options) for number, text in enumerate(TEXTS)]
            harness.synthesise("A request beside them.", **options)
            for sender, codes, text in zip(senders, expected, TEXTS, strict=True):
                assert_same(sender.codes(), codes, text)


def test_stream_without_text_pauses_alone_and_receives_no_padding(tiny_checkpoint: Path) -> None:
    with running_engine(tiny_checkpoint, text_layout="streaming", base_frames=40) as harness:
        expected = harness.synthesise("Hello there my good friend.", temperature=0.0)
        key, listener = harness.start(1, "Hello ", temperature=0.0)
        other = harness.synthesise("Another one speaks on.", temperature=0.0)
        assert len(other) > 10
        num_ids = len(harness.prompts._tokenizer.encode("Hello"))
        wait_for(lambda: len(harness.recorder.of(key)) == num_ids)
        time.sleep(0.2)
        assert len(harness.recorder.of(key)) == num_ids, "the stream generates one frame for each text id"
        harness.sequences.append(1, "there my good ", False)
        wait_for(lambda: len(harness.recorder.of(key)) > num_ids)
        harness.sequences.append(1, "friend.", True)
        assert listener.ended.wait(WAIT)
        np.testing.assert_array_equal(harness.recorder.of(key), expected)


@pytest.mark.parametrize("layout", ["full", "streaming"])
@pytest.mark.parametrize("lookahead", [0, 1], ids=["read-at-once", "read-one-tick-late"])
def test_long_text_equals_its_parts_synthesised_alone(tiny_checkpoint: Path, layout: str, lookahead: int) -> None:
    settings = {"text_layout": layout, "lookahead": lookahead, **BRIEF}
    with running_engine(tiny_checkpoint, part_text_tokens=shortest(tiny_checkpoint), **settings) as harness:
        together = harness.synthesise(LONG, seed=5)
        apart = [harness.synthesise(sentence, seed=5 + i) for i, sentence in enumerate(SENTENCES)]
        np.testing.assert_array_equal(together, np.concatenate(apart))
        key, listener = harness.start(3, LONG[:30], seed=5)
        harness.sequences.append(3, LONG[30:], True)
        assert listener.ended.wait(WAIT)
        if layout == "streaming":
            np.testing.assert_array_equal(harness.recorder.of(key), together)
        capped = harness.synthesise(LONG, seed=5, max_frames=len(apart[0]) + 3)
        np.testing.assert_array_equal(capped[: len(apart[0])], together[: len(apart[0])])


def test_audio_across_parts_equals_decoding_all_codes_at_once(tiny_checkpoint: Path) -> None:
    checkpoint = Checkpoint.open(str(tiny_checkpoint))
    codec = LocalCodec(checkpoint, 8)
    with running_engine(tiny_checkpoint, codec=codec, part_text_tokens=shortest(tiny_checkpoint), **BRIEF) as harness:
        key, listener = harness.key(), Listener()
        harness.submit(SynthesisRequest.of({"text": LONG, **VOICE, "seed": 1}), listener, key)
        assert listener.ended.wait(WAIT)
        assert listener.error is None
    codes = torch.from_numpy(codec.of(key)).int()
    spoken = np.concatenate(listener.pcm)
    assert len(spoken) == 1920 * len(codes)
    with torch.inference_mode():
        at_once = reference_codec(tiny_checkpoint).decoder(codes.T[None].long())[0, 0].numpy()
    np.testing.assert_allclose(spoken / 32767, at_once, atol=1e-4)


def assert_same(codes: np.ndarray, expected: np.ndarray, text: str) -> None:
    same = (codes[: len(expected)] == expected[: len(codes)]).all(axis=1)
    first = int(same.argmin()) if not same.all() else len(same)
    assert first == len(codes) == len(expected), f"{text!r}: frame {first} of {len(expected)} differs first"


def shortest(folder: Path) -> int:
    """The token limit that makes each sentence a separate part."""
    tokenizer = TextTokenizer(Checkpoint.open(str(folder)), 256)
    lengths = [len(tokenizer.encode(sentence)) for sentence in SENTENCES]
    assert max(lengths) < 2 * min(lengths)
    return min(lengths)


def wait_for(condition: Any) -> None:
    deadline = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
