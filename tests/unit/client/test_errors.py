"""What the clients of a gateway read of a server's error."""

import grpc
import pytest

from qwen3_tts_client.errors import LOST, OUTCOMES, SpeechError, from_rpc, public_message


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


class RpcFailure(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self.code, self.details = lambda: code, lambda: details


@pytest.mark.parametrize(
    ("code", "details"),
    [
        (grpc.StatusCode.UNKNOWN, "Stream removed"),
        (grpc.StatusCode.INTERNAL, "Received RST_STREAM with error code 2"),
        (grpc.StatusCode.UNAVAILABLE, "recvmsg:Connection reset by peer"),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed"),
        (grpc.StatusCode.UNAVAILABLE, "upstream connect error … reset reason: connection termination"),
    ],
)
def test_a_stream_of_a_lost_server_says_that_it_can_be_sent_again(code: grpc.StatusCode, details: str) -> None:
    error = from_rpc(RpcFailure(code, details))
    assert (error.outcome, public_message(error)) == ("disconnected", LOST)
    assert details in str(error)


@pytest.mark.parametrize(
    ("code", "details", "outcome"),
    [
        (grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses: Connection refused", "disconnected"),
        (grpc.StatusCode.INTERNAL, "CUDA error", "error"),
        (grpc.StatusCode.CANCELLED, "Stream removed", "cancelled"),
    ],
)
def test_other_failures_keep_their_message(code: grpc.StatusCode, details: str, outcome: str) -> None:
    error = from_rpc(RpcFailure(code, details))
    assert (error.outcome, str(error)) == (outcome, f"{code.name}: {details}")
