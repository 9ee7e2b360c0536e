"""Utterances of a soak, and the audio of each when spoken alone."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2

from qwen3_tts_client.protocol import SpeechRequest, encode
from qwen3_tts_client.say import streamed

CUSTOM, BASE, DESIGN = "qwen3_tts", "qwen3_tts_base", "qwen3_tts_design"
REFERENCE_RATE = 24_000
TEXTS = (
    "Good morning.",
    "Your call is important to us.",
    "The next train leaves in eight minutes, from the other side of the station.",
    "I have booked a table for two at seven. Is that all right? It has a view of the harbour.",
    "今天天气很好。",
)
# Short enough for many, and some that are longer than a text part.
FRAMES = (4, 7, 12, 40)
# Difference of 16-bit samples by rounding: products of other batch sizes round differently.
TOLERANCE = 4
# On a GPU, where the codec computes in float16: relative to the utterance, both as Euclidean norms.
GPU_TOLERANCE = 0.02


@dataclass(frozen=True)
class Utterance:
    """`samples` int16 [n] is its audio when spoken alone."""

    model: str
    request: SpeechRequest
    samples: np.ndarray
    on_gpu: bool = False

    def whole(self) -> Iterator[service_pb2.ModelInferRequest]:
        yield encode(self.request, self.model)

    def typed(self, pause: Callable[[], object]) -> Iterator[service_pb2.ModelInferRequest]:
        """Word by word, a pause before each further one."""
        return streamed(self.request, self.model, self._words(pause))

    def _words(self, pause: Callable[[], object]) -> Iterator[str]:
        for i, word in enumerate(self.request.text.split(" ")):
            if i:
                pause()
            yield f" {word}" if i else word

    def is_beginning_of(self, received: np.ndarray) -> bool:
        """Whether the audio, whole or cut short, is this utterance's."""
        expected = self.samples[: len(received)].astype(np.int32)
        if len(expected) != len(received):
            return False
        difference = np.abs(expected - received)
        if self.on_gpu:
            return bool(np.linalg.norm(difference) <= GPU_TOLERANCE * np.linalg.norm(expected))
        return bool((difference <= TOLERANCE).all())


def requests() -> Iterator[tuple[str, SpeechRequest]]:
    """The model and the request of every utterance; each has a seed of its own."""
    seed = 0
    for text in TEXTS:
        for max_frames in FRAMES:
            for model, voice in _voices().items():
                seed += 1
                yield model, SpeechRequest(text, seed=seed, max_frames=max_frames, **voice)


def recording(seed: int = 0, seconds: float = 1.5) -> np.ndarray:
    """float32 [samples] at REFERENCE_RATE."""
    rng = np.random.default_rng(seed)
    times = np.arange(int(seconds * REFERENCE_RATE)) / REFERENCE_RATE
    audio: np.ndarray = 0.3 * np.sin(2 * np.pi * 150 * times) + rng.normal(0, 0.05, len(times))
    return audio.astype(np.float32)


def _voices() -> dict[str, dict[str, Any]]:
    clone = {"ref_audio": recording(), "ref_sample_rate": REFERENCE_RATE, "ref_text": "Hey there."}
    return {CUSTOM: {"speaker": "ryan"}, BASE: clone, DESIGN: {"instruct": "A calm old man."}}
