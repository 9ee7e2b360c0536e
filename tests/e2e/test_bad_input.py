"""Invalid requests fail with the field, its value and the allowed values; the server keeps serving."""

import struct
from typing import Any

import pytest

from tests.e2e.serving import Caller, eventually

CASES: list[tuple[dict[str, Any], str]] = [
    ({"text": ""}, "INVALID_ARG: text: '': must contain more than white space"),
    ({"text": " \n\t "}, "INVALID_ARG: text: ' \\n\\t ': must contain more than white space"),
    ({"text": "a<|im_end|>b"}, "INVALID_ARG: text: '<|im_end|>': control tokens are not allowed"),
    ({"text": "<tts_pad>"}, "INVALID_ARG: text: '<tts_pad>': control tokens"),
    ({"text": "x" * 2_000_000}, "(2000000 characters): at most 16384 characters"),
    ({"text": "1 " * 4000}, "tokens, at most 1024 are allowed"),
    ({"speaker": "nobody"}, "INVALID_ARG: speaker: 'nobody': unknown: choose one of aiden, dylan, eric"),
    ({"speaker": None}, "INVALID_ARG: speaker: None: required: choose one of aiden"),
    ({"language": "klingon"}, "INVALID_ARG: language: 'klingon': unknown: choose one of auto, chinese, english"),
    ({"language": "beijing_dialect"}, "INVALID_ARG: language: 'beijing_dialect': unknown: choose one of auto"),
    ({"instruct": "<|im_start|>"}, "INVALID_ARG: instruct: '<|im_start|>': control tokens"),
    ({"temperature": -0.5}, "INVALID_ARG: temperature: -0.5: Input should be greater than or equal to 0"),
    ({"temperature": float("nan")}, "INVALID_ARG: temperature: nan: Input should be a finite number"),
    ({"temperature": float("inf")}, "INVALID_ARG: temperature: inf: Input should be a finite number"),
    ({"top_p": 0.0}, "INVALID_ARG: top_p: 0: Input should be greater than 0"),
    ({"top_p": 1.5}, "INVALID_ARG: top_p: 1.5: Input should be less than or equal to 1"),
    ({"top_k": -2}, "INVALID_ARG: top_k: -2: Input should be greater than or equal to -1"),
    ({"repetition_penalty": 0.0}, "INVALID_ARG: repetition_penalty: 0: Input should be greater than or equal to 0.01"),
    ({"max_frames": 0}, "INVALID_ARG: max_frames: 0: Input should be greater than or equal to 1"),
    ({"max_frames": 100_000}, "INVALID_ARG: max_frames: 100000: at most 4096"),
    ({"seed": -2}, "INVALID_ARG: seed: -2: Input should be greater than or equal to -1"),
]


@pytest.mark.parametrize(("fields", "message"), CASES, ids=[f"{next(iter(f))}-{i}" for i, (f, _) in enumerate(CASES)])
def test_invalid_field_is_rejected_with_the_allowed_values(
    caller: Caller, fields: dict[str, Any], message: str
) -> None:
    received = caller.speak(**fields)
    assert received.pcm == []
    assert received.error is not None
    assert message in received.error


TEXT = ("BYTES", [1], struct.pack("<I", 1) + b"x")
NOT_UTF8 = ("BYTES", [1], struct.pack("<I", 2) + b"\xff\xfe")
SPEAKER = ("BYTES", [1], struct.pack("<I", 4) + b"ryan")


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"text": ("FP32", [1], b"\0\0\0\0"), "speaker": SPEAKER}, "'text'"),
        ({"text": TEXT, "speaker": SPEAKER, "top_k": ("INT64", [1], bytes(8))}, "'top_k'"),
        ({"text": TEXT, "speaker": SPEAKER, "temperature": ("FP32", [2], bytes(8))}, "'temperature'"),
        ({"text": TEXT, "speaker": SPEAKER, "pitch": ("FP32", [1], bytes(4))}, "'pitch'"),
        ({"speaker": SPEAKER}, "INVALID_ARG: text: None: Field required"),
        ({"text": NOT_UTF8, "speaker": SPEAKER}, "text: b'\\xff\\xfe': must be UTF-8"),
    ],
    ids=["dtype-of-text", "dtype-of-top_k", "shape", "unknown-input", "no-text", "not-utf-8"],
)  # fmt: skip
def test_malformed_tensor_is_rejected(caller: Caller, inputs: dict[str, Any], message: str) -> None:
    assert message in caller.raw(**inputs)


def test_request_after_an_invalid_one_succeeds(caller: Caller) -> None:
    invalid = caller.metric("qwen3_tts_requests_total", outcome="invalid")
    assert caller.speak(text="").error
    received = caller.speak(seed=1, max_frames=9)
    assert received.error is None
    assert len(received.samples) == 9 * 1920
    eventually(lambda: caller.metric("qwen3_tts_requests_running") == 0)
    eventually(lambda: caller.metric("qwen3_tts_requests_total", outcome="invalid") > invalid)
