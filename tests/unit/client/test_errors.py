"""What the clients of a gateway read of a server's error."""

import pytest

from qwen3_tts_client.errors import OUTCOMES, SpeechError, public_message


@pytest.mark.parametrize(
    ("outcome", "message", "public"),
    [
        ("invalid", "[request id: a] INVALID_ARG: seed: -1: 0 or more", "seed: -1: 0 or more"),
        ("invalid", "text_format: SSML is not supported", "text_format: SSML is not supported"),
        ("invalid", "INVALID_ARGUMENT: unexpected inference input 'x'", "the server refused the request"),
        ("unavailable", "UNAVAILABLE: busy: 2 streams run, 1 wait", "busy: 2 streams run, 1 wait"),
        ("unavailable", "UNAVAILABLE: busy: 9 requests wait (intake-0)", "busy: 9 requests wait"),
        ("unavailable", "UNAVAILABLE: 90 positions required, the key/value cache holds 64", "90 positions required"),
        ("unavailable", "UNAVAILABLE: the engine's process ended with exit code -11", "no server can take the request"),
        ("disconnected", "UNAVAILABLE: ipv4:10.0.0.7:8001: Connection refused", "no server is reachable"),
        ("timeout", "DEADLINE_EXCEEDED: Deadline Exceeded", "the server did not answer in time"),
        ("cancelled", "CANCELLED: Locally cancelled by application!", "the server cancelled the request"),
        ("error", "INTERNAL: prefill failed: RuntimeError: CUDA error", "the request failed in the server"),
    ],
)
def test_a_message_names_nothing_inside_the_service(outcome: str, message: str, public: str) -> None:
    assert public_message(SpeechError(outcome, message)).startswith(public)


@pytest.mark.parametrize("outcome", sorted(set(OUTCOMES) - {"ok", "invalid"}))
def test_an_unknown_message_is_replaced(outcome: str) -> None:
    assert "RuntimeError" not in public_message(SpeechError(outcome, "RuntimeError: 10.0.0.7"))
