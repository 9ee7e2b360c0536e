"""The teacher: flite's statistical voices slt and rms, in this process through ctypes."""

import ctypes
import os
from collections.abc import Iterator
from ctypes import CDLL, POINTER, RTLD_GLOBAL, Structure, c_char_p, c_float, c_int, c_short, c_void_p, cast
from functools import cache
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

RATE = 16_000
VOICES = ("cmu_us_slt", "cmu_us_rms")
# Environment variable: a folder with the shared libraries, where libflite1 is not installed.
FOLDER = "QWEN3_TTS_FLITE"
# The names of segments, in the order of their ids; the first is silence.
_PHONES = "pau aa ae ah ao aw ax ay b ch d dh eh er ey f g hh ih iy jh k l m n ng ow oy p r s sh t th uh uw v w y z zh"
PHONES = _PHONES.split()
SIGNATURES = {
    "flite_init": (c_int, []),
    "flite_synth_text": (c_void_p, [c_char_p, c_void_p]),
    "utt_wave": (c_void_p, [c_void_p]),
    "utt_relation": (c_void_p, [c_void_p, c_char_p]),
    "relation_head": (c_void_p, [c_void_p]),
    "item_next": (c_void_p, [c_void_p]),
    "item_feat_string": (c_char_p, [c_void_p, c_char_p]),
    "item_feat_float": (c_float, [c_void_p, c_char_p]),
    "delete_utterance": (None, [c_void_p]),
}


class Spoken(NamedTuple):
    """Samples int16 at 16 kHz, the phones as indices of PHONES, and where each ends, in seconds."""

    samples: np.ndarray
    phones: np.ndarray
    ends: np.ndarray


class Voice(Protocol):
    def __call__(self, text: str) -> Spoken: ...


class Wave(Structure):
    """cst_wave."""

    _fields_ = [
        ("type", c_char_p),
        ("sample_rate", c_int),
        ("num_samples", c_int),
        ("num_channels", c_int),
        ("samples", POINTER(c_short)),
    ]


class FliteVoice:
    def __init__(self, name: str) -> None:
        """Raises OSError when the libraries are missing."""
        self._flite = _flite()
        register = getattr(_library(f"libflite_{name}.so.1"), f"register_{name}")
        register.restype, register.argtypes = c_void_p, [c_char_p]
        self._voice = register(None)

    def __call__(self, text: str) -> Spoken:
        utterance = self._flite.flite_synth_text(text.encode("ascii", "ignore"), self._voice)
        wave = cast(self._flite.utt_wave(utterance), POINTER(Wave)).contents
        samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).copy()
        segments = list(self._segments(utterance))
        self._flite.delete_utterance(utterance)
        phones, ends = zip(*segments, strict=True)
        return Spoken(samples, np.array(phones, np.uint8), np.array(ends, np.float32))

    def _segments(self, utterance: int) -> Iterator[tuple[int, float]]:
        item = self._flite.relation_head(self._flite.utt_relation(utterance, b"Segment"))
        while item:
            name = self._flite.item_feat_string(item, b"name").decode()
            yield PHONES.index(name), self._flite.item_feat_float(item, b"end")
            item = self._flite.item_next(item)


@cache
def _flite() -> CDLL:
    if folder := os.environ.get(FOLDER):
        for name in ("libasound.so.2", "libflite.so.1"):
            CDLL(str(Path(folder) / name), mode=RTLD_GLOBAL)
    flite = _library("libflite.so.1")
    for name, (result, arguments) in SIGNATURES.items():
        function = getattr(flite, name)
        function.restype, function.argtypes = result, arguments
    for name in ("cmulex", "usenglish"):
        _library(f"libflite_{name}.so.1")
    flite.flite_init()
    return flite


def _library(name: str) -> ctypes.CDLL:
    folder = os.environ.get(FOLDER)
    return CDLL(str(Path(folder) / name) if folder else name, mode=RTLD_GLOBAL)
