"""What the process that calls Triton and the engine's process tell each other."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from qwen3_tts_engine.core.streams import Summary
from qwen3_tts_engine.frontend.sequences import SequencePosition
from qwen3_tts_engine.metrics import Readings
from qwen3_tts_engine.request import RequestError

# To the engine. The end of these messages ends its process.


@dataclass(frozen=True, slots=True)
class Accept:
    """A request: its caller's key and arrival, its fields and its position in a sequence."""

    key: str
    arrived: float
    fields: dict[str, Any]
    position: SequencePosition | None


@dataclass(frozen=True, slots=True)
class Cancel:
    """The client of a request has gone."""

    key: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The outputs, or the error, of a call."""

    call: int
    result: list[np.ndarray] | RequestError


@dataclass(frozen=True, slots=True)
class Report:
    """Asks for the readings."""


# From the engine, about one request. Those of one request come through one pipe.


@dataclass(frozen=True, slots=True)
class Audio:
    key: str
    pcm: bytearray
    """Of int16 samples; writable, as Triton's tensors must be."""


@dataclass(frozen=True, slots=True)
class Voices:
    """The result of a voice operation, which ends the request."""

    key: str
    voices: list[str]


@dataclass(frozen=True, slots=True)
class End:
    key: str
    error: RequestError | None
    summary: Summary | None


# From the engine, about itself.


@dataclass(frozen=True, slots=True)
class Loaded:
    """The models are loaded, or why they are not."""

    error: str | None


@dataclass(frozen=True, slots=True)
class Opened:
    """Requests are no longer held."""


@dataclass(frozen=True, slots=True)
class Died:
    error: RequestError


@dataclass(frozen=True, slots=True)
class Call:
    """A call of another model, with its inputs and the names of its outputs."""

    call: int
    model: str
    inputs: dict[str, np.ndarray]
    outputs: list[str]
    parameters: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reported:
    readings: Readings


@dataclass(frozen=True, slots=True)
class Logged:
    level: int
    text: str
