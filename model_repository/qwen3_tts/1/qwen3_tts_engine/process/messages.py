"""What the process that calls Triton and the engine's process tell each other: tuples, which pickle fast."""

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np

from qwen3_tts_engine.core.streams import Summary
from qwen3_tts_engine.metrics import Readings
from qwen3_tts_engine.request import RequestError, SequencePosition

# Messages to the engine. Their end ends its process.


class Accept(NamedTuple):
    """A request: its caller's key and arrival, its fields and its position in a sequence."""

    key: str
    arrived: float
    fields: dict[str, Any]
    position: SequencePosition | None


class Cancel(NamedTuple):
    """The client of a request has gone."""

    key: str


class Answer(NamedTuple):
    """The outputs, or the error, of a call."""

    call: int
    result: list[np.ndarray] | RequestError


class Report(NamedTuple):
    """Asks for the readings."""


# Messages from the engine about one request. Those of one request come through one pipe.


class Pcm(NamedTuple):
    key: str
    pcm: bytearray
    """Bytes of int16 samples; writable, as Triton's tensors must be."""
    words: Collection[str]


class Voices(NamedTuple):
    """The result of a voice operation, which ends the request."""

    key: str
    voices: list[str]


class End(NamedTuple):
    key: str
    error: RequestError | None
    summary: Summary | None


# Messages from the engine about itself.


class Loaded(NamedTuple):
    """The models are loaded, or why they are not."""

    error: str | None


class Opened(NamedTuple):
    """Requests are no longer held."""


class Died(NamedTuple):
    error: RequestError


class CallOther(NamedTuple):
    """A call of another model, with its inputs and the names of its outputs."""

    call: int
    model: str
    inputs: dict[str, np.ndarray]
    outputs: list[str]
    parameters: dict[str, Any]


class Reported(NamedTuple):
    readings: Readings


class Logged(NamedTuple):
    level: int
    text: str
