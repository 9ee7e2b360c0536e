"""Batch invariance on a CPU: exact in the talker, up to rounding in the codec."""

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from code2wav_step.onnx_runner import INPUTS, OUTPUTS
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CodecDecoderConfig
from qwen3_tts_engine.codec import contract
from qwen3_tts_engine.codec.client import without_audio
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Chunks, Frames, Newcomer, TextFeed
from qwen3_tts_engine.engine.engine import Engine
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.interfaces import Tick
from qwen3_tts_engine.request import RequestError, SynthesisRequest
from qwen3_tts_engine.startup import build_engine
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.runner import TalkerRunner
from qwen3_tts_engine.talker.sampling import DrawParameters, draw
from qwen3_tts_engine.voice import Voice
from tests.conftest import CheckpointOf
from tests.fakes.codec_layers import pcm_of
from tests.fakes.scripted import Listener

WAIT = 120.0
CPU = torch.device("cpu")
SLOTS, FRAMES, REPETITIONS, NEIGHBOURS = 12, 20, 6, 6
SEED = 3
FAILS_IN_PREFILL, FAILS_IN_CODEC, FAILS_TO_SEND, IS_CANCELLED, ENDS = range(5)
# INT16 levels by which codec calls of different shapes may round differently.
LEVELS = 4
SAMPLING: tuple[dict[str, Any], ...] = ({}, {"top_k": 3}, {"top_k": 0}, {"top_p": 0.7}, {"temperature": 0.0})


class RecordingRunner:
    """Records what the runner writes to the cache for each frame of each stream."""

    lookahead = 0
    has_graphs = False

    def __init__(self, runner: TalkerRunner) -> None:
        self.limits = runner.limits
        self.computed: dict[str, list[torch.Tensor]] = {}
        self.failing: set[str] = set()
        self._runner = runner
        self._keys: dict[int, str] = {}

    def prefill(self, newcomers: list[Newcomer]) -> list[tuple[Newcomer, Exception]]:
        self._keys |= {newcomer.slot: newcomer.stream.key for newcomer in newcomers}
        failed = [newcomer for newcomer in newcomers if newcomer.stream.key in self.failing]
        self._runner.prefill([newcomer for newcomer in newcomers if newcomer not in failed])
        return [(newcomer, RuntimeError("injected")) for newcomer in failed]

    def grow(self, grown: np.ndarray) -> None:
        self._runner.grow(grown)

    def feed(self, feeds: list[TextFeed]) -> None:
        self._runner.feed(feeds)

    def launch(self, slots: np.ndarray) -> Frames:
        frames = self._runner.launch(slots)
        for slot in slots:
            self.computed.setdefault(self._keys[int(slot)], []).append(self._last_written(int(slot)))
        return frames

    def collect(self, tick: Tick) -> Frames:
        assert isinstance(tick, Frames)
        return tick

    def _last_written(self, slot: int) -> torch.Tensor:
        position, size = int(self._runner._state.position[slot]) - 1, self.limits.page_size
        page = int(self._runner._state.page_table[slot, position // size])
        return self._runner.cache.data[:, :, page * size + position % size].clone()


class OnnxCodec:
    """The exported codec step, with a state for each slot; rows of the streams in `failing` fail."""

    max_calls = 1

    def __init__(self, model: Path, decoder_config: CodecDecoderConfig) -> None:
        self._session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
        self._states = np.zeros((SLOTS, contract.state_size(decoder_config)), np.float32)
        self._max_history = contract.max_history(decoder_config)
        self.failing: set[str] = set()

    def announce(self) -> None: ...

    def decode(self, chunks: Chunks) -> tuple[np.ndarray, dict[int, RequestError]]:
        for row in np.flatnonzero(chunks.first):
            self._states[chunks.slots[row]] = self._after_reference(chunks.streams[row].voice)
        history = np.minimum(chunks.history, self._max_history).astype(np.int32)[:, None]
        waveform, self._states[chunks.slots] = self._step(chunks.codes, self._states[chunks.slots], history)
        pcm = pcm_of(torch.from_numpy(waveform))
        injected = {row: RequestError("injected") for row, s in enumerate(chunks.streams) if s.key in self.failing}
        return pcm, without_audio(pcm) | injected

    def _after_reference(self, voice: Voice | None) -> np.ndarray:
        """The state where a stream in this voice starts."""
        state = cold = np.zeros_like(self._states[:1])
        if voice is not None and voice.codes is not None:
            _, state = self._step(voice.codes[None], cold, np.zeros((1, 1), np.int32))
        first: np.ndarray = state[0]
        return first

    def _step(self, codes: np.ndarray, state: np.ndarray, history: np.ndarray) -> list[np.ndarray]:
        outputs: list[np.ndarray] = self._session.run(OUTPUTS, dict(zip(INPUTS, (codes, state, history), strict=True)))
        return outputs


class SharedEngine:
    """An engine that speaks one cloned request repeatedly, beside random neighbours."""

    def __init__(self, folder: Path, repository: Path) -> None:
        checkpoint = Checkpoint.open(str(folder))
        sizes = {"max_streams": SLOTS, "max_text_tokens": 64, "max_frames_limit": 64, "talker_proof_seconds": 0}
        config = EngineConfig.model_validate({"checkpoint": str(folder), **sizes})
        self._hidden = checkpoint.config.talker_config.hidden_size
        self.runner = RecordingRunner(load_runner(checkpoint, config, CPU))
        decoder = checkpoint.speech_tokenizer.decoder_config
        self.codec = OnnxCodec(repository / contract.MODEL_NAME / "1" / "model.onnx", decoder)
        self._prompts = PromptBuilder(checkpoint, config)
        self.engine: Engine = build_engine(config, self._prompts.num_codebooks, self.runner, self.codec)
        self.engine.start()
        self._voice = self._make_voice(SEED, in_context=True)

    def speak_reference(self, key: str) -> Listener:
        return self._speak(key, "Hello there, how are you?", self._voice, SEED)

    def add_neighbour(self, key: str, rng: random.Random) -> Listener:
        event = rng.randrange(5)
        listener = Listener()
        if event == FAILS_IN_PREFILL:
            self.runner.failing.add(key)
        if event == FAILS_IN_CODEC:
            self.codec.failing.add(key)
        if event == FAILS_TO_SEND:
            listener.send_error = OSError("gone")
        voice = self._make_voice(rng.randrange(9), in_context=rng.random() < 0.5)
        options = rng.choice(SAMPLING)
        self._speak(key, "One, two. " * rng.randint(1, 5), voice, rng.randrange(99), listener, **options)
        if event == IS_CANCELLED:
            threading.Timer(rng.random() * 0.2, self.engine.cancel, (key,)).start()
        return listener

    def newcomer(self, slot: int) -> Newcomer:
        fields = {"text": "Hello there. " * (1 + slot % 4), "voice": "any", "seed": slot, "max_frames": FRAMES}
        request = SynthesisRequest.of(fields).in_voice(self._make_voice(slot, in_context=slot % 3 == 0))
        stream = self._prompts.stream(request, Listener(), str(slot))
        pages = -(-(stream.num_positions + 1) // self.runner.limits.page_size)
        return Newcomer(stream, slot, list(range(slot * 8, slot * 8 + pages)))

    def _speak(
        self, key: str, text: str, voice: Voice, seed: int, listener: Listener | None = None, **options: float
    ) -> Listener:
        listener = listener or Listener()
        fields = {"text": text, "voice": "any", "seed": seed, "max_frames": FRAMES, **options}
        self.engine.submit(self._prompts.stream(SynthesisRequest.of(fields).in_voice(voice), listener, key))
        return listener

    def _make_voice(self, seed: int, *, in_context: bool) -> Voice:
        random = np.random.default_rng(seed)
        vector = random.normal(0, 0.3, self._hidden).astype(np.float32)
        if not in_context:
            return Voice(vector)
        return Voice(vector, random.integers(0, 2048, (4, 16), np.int32), "What it says.")


@pytest.fixture(scope="module")
def shared(checkpoint_of: CheckpointOf, tiny_base_models: Path) -> Iterator[SharedEngine]:
    shared = SharedEngine(checkpoint_of("base"), tiny_base_models)
    yield shared
    shared.engine.close()


def test_a_seeded_request_is_unaffected_by_neighbours_that_cancel_and_fail(shared: SharedEngine) -> None:
    rng = random.Random(0)
    alone = shared.speak_reference("alone")
    assert alone.ended.wait(WAIT)
    assert alone.error is None
    for repetition in range(REPETITIONS):
        neighbours = [shared.add_neighbour(f"{repetition} before {i}", rng) for i in range(rng.randrange(NEIGHBOURS))]
        repeated = shared.speak_reference(f"{repetition}")
        neighbours += [shared.add_neighbour(f"{repetition} after {i}", rng) for i in range(rng.randrange(NEIGHBOURS))]
        assert all(listener.ended.wait(WAIT) for listener in (repeated, *neighbours))
        assert repeated.error is None
        expected, computed = (torch.stack(shared.runner.computed[key]) for key in ("alone", f"{repetition}"))
        assert torch.equal(computed, expected)
        samples, expected_samples = np.concatenate(repeated.pcm), np.concatenate(alone.pcm)
        assert len(samples) == len(expected_samples) > 0
        np.testing.assert_allclose(samples, expected_samples, atol=LEVELS)


@pytest.fixture
def num_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize(("threads", "frames"), [(1, FRAMES), (2, 2)])
def test_a_row_is_computed_identically_in_every_batch(
    shared: SharedEngine, num_threads: Callable[[int], None], threads: int, frames: int
) -> None:
    num_threads(threads)
    runner = shared.runner._runner
    newcomers = [shared.newcomer(slot) for slot in range(SLOTS)]

    def written(batches: Iterator[np.ndarray]) -> torch.Tensor:
        runner.cache.data.zero_()
        assert runner.prefill(newcomers) == []
        for slots in batches:
            runner.launch(slots)
        return runner.cache.data.clone()

    alone = written(np.array([slot]) for slot in range(SLOTS) for _ in range(frames))
    assert torch.equal(written(mixed_batches(random.Random(threads), frames)), alone)


def test_prefilled_frames_are_computed_identically(shared: SharedEngine) -> None:
    runner, newcomer = shared.runner._runner, shared.newcomer(0)
    runner.cache.data.zero_()
    assert runner.prefill([newcomer]) == []
    frames = np.concatenate([runner.launch(np.array([0])).codes for _ in range(FRAMES)])
    computed = runner.cache.data.clone()
    # The last frame has not been fed yet.
    runner.cache.data.zero_()
    assert runner.prefill([replace(newcomer, frames=frames[:-1])]) == []
    assert torch.equal(runner.cache.data, computed)


def mixed_batches(rng: random.Random, frames: int) -> Iterator[np.ndarray]:
    """Batches of random sizes in which each slot occurs `frames` times."""
    left = dict.fromkeys(range(SLOTS), frames)
    while left:
        chosen = sorted(rng.sample(list(left), rng.randint(1, len(left))))
        yield np.array(chosen)
        left = {slot: count - (slot in chosen) for slot, count in left.items() if count - (slot in chosen)}


def test_a_draw_does_not_depend_on_its_neighbours_parameters() -> None:
    """Draws at the borders between two codes, where the smallest difference in a sum shows."""
    logits = torch.randn(1, 2048, generator=torch.Generator().manual_seed(5)) * 4
    options = [(1.0, 5, 1.0), (0.7, 0, 0.9), (1.3, 50, 1.0), (0.0, 3, 1.0), (1.0, 100, 0.5), (0.9, 0, 1.0)]
    cumulative = logits.topk(5).values.softmax(-1).cumsum(-1)[0]
    borders = torch.cat([torch.nextafter(cumulative, torch.tensor(x)) for x in (0.0, 1.0)] + [cumulative]).clamp(
        max=0.9999
    )
    for border in borders.tolist():
        together = draw(logits.expand(len(options), -1), parameters(options), torch.full((len(options),), border))
        alone = [draw(logits, parameters([option]), torch.tensor([border])).item() for option in options]
        assert together.tolist() == alone


def parameters(options: list[tuple[float, int, float]]) -> DrawParameters:
    temperature, top_k, top_p = zip(*options, strict=True)
    return DrawParameters(torch.tensor(temperature), torch.tensor(top_k), torch.tensor(top_p))
