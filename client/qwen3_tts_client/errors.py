"""Stream outcomes, exit codes and exceptions."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import grpc

# `unavailable`: the server refused the request (full, shutting down). `disconnected`: the server cannot be reached.
OUTCOMES = ("ok", "invalid", "unavailable", "cancelled", "error", "timeout", "disconnected")

_RPC_OUTCOMES = {
    grpc.StatusCode.CANCELLED: "cancelled",
    grpc.StatusCode.DEADLINE_EXCEEDED: "timeout",
    grpc.StatusCode.INVALID_ARGUMENT: "invalid",
    grpc.StatusCode.UNAVAILABLE: "disconnected",
}
_RESETS = (grpc.StatusCode.UNKNOWN, grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)
# Triton's error_message on a stream has only the text of a model's error, so the model prefixes it with its code.
# (The metadata `triton_grpc_error: true` adds the code, but concurrent errors then crash Triton 2.51.)
_MESSAGE_OUTCOMES = {
    "INVALID_ARG": "invalid",
    "UNAVAILABLE": "unavailable",
    "CANCELLED": "cancelled",
    "INTERNAL": "error",
}
# The first code counts: an internal error may quote the message of another model.
_CODE = re.compile(rf"\b({'|'.join(_MESSAGE_OUTCOMES)})\b: ")


# Replace messages that may name hosts, paths, classes or gRPC.
_PUBLIC = {
    "invalid": "the server refused the request",
    "unavailable": "no server can take the request now",
    "cancelled": "the server cancelled the request",
    "error": "the request failed in the server",
    "timeout": "the server did not answer in time",
    "disconnected": "no server is reachable",
}
_MODEL_PREFIX = re.compile(r"^(\[request id: .*?\] )?\s*(.*?\b(INVALID_ARG|UNAVAILABLE): )?")
# gRPC's words for a stream whose server, or the proxy before it, ended while it answered. A request changes nothing at
# the server, so that it can be sent again.
_LOST = re.compile(r"Stream removed|RST_STREAM|Socket closed|Connection reset|connection termination")
LOST = "the server was lost while it spoke: send the request again"
# Triton's words for a request that comes while its server ends, or before its model is loaded.
_UNLOADED = re.compile(r"^Request for unknown model: .* (has no available versions|is not at ready state)")
_CAPACITY = re.compile(
    r"busy: [^(]*[^( ]|the server is .*|\d+ voices are .*|the voices take .*|\d+ positions required.*"
)


class ExitCode(IntEnum):
    OK = 0
    USAGE = 2  # argparse uses the same
    SERVER = 3
    REQUEST = 4
    TIMEOUT = 5
    OUTPUT = 6
    PARTIAL = 7
    INTERRUPTED = 130  # 128 + SIGINT, as shells have it
    PIPE = 141  # 128 + SIGPIPE


STANDARD_OUTPUT = "standard output"
# Listed in the help and in docs/client.md.
EXIT_CODES = {
    ExitCode.OK: "done",
    ExitCode.USAGE: "wrong option or input file",
    ExitCode.SERVER: "the server is unreachable, not ready or has no such model",
    ExitCode.REQUEST: "the request was refused or failed",
    ExitCode.TIMEOUT: "no response in time",
    ExitCode.OUTPUT: "the output cannot be written",
    ExitCode.PARTIAL: "bench: some requests failed",
    ExitCode.INTERRUPTED: "interrupted",
    ExitCode.PIPE: "the reader of the output has left",
}


class ClientError(Exception):
    """Ends a command with a message and an exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.code = code


@contextmanager
def reported(place: str) -> Iterator[None]:
    """Names where a write failed. Raises ClientError, or BrokenPipeError once the reader of a pipe has left."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ClientError(f"{place}: {error.strerror}", ExitCode.OUTPUT) from None


class SpeechError(Exception):
    """A failed stream; `outcome` is one of OUTCOMES."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def public_message(error: SpeechError) -> str:
    """The message for clients of a service, without what is behind it; the whole message belongs in the log."""
    reason = _MODEL_PREFIX.sub("", str(error), count=1)
    if error.outcome == "invalid" and not reason.startswith("INVALID_ARGUMENT: "):
        return reason
    if error.outcome == "unavailable" and (capacity := _CAPACITY.match(reason)):
        return capacity[0]
    if error.outcome == "disconnected" and LOST in reason:
        return LOST
    return _PUBLIC[error.outcome]


def from_rpc(error: grpc.RpcError) -> SpeechError:
    """A stream of a lost server is `disconnected`, whatever gRPC calls it."""
    if error.code() in _RESETS and _LOST.search(error.details() or ""):
        return SpeechError("disconnected", f"UNAVAILABLE: {LOST} ({error.details()})")
    return SpeechError(_RPC_OUTCOMES.get(error.code(), "error"), f"{error.code().name}: {error.details()}")


def from_message(message: str) -> SpeechError:
    if _UNLOADED.search(message):
        return SpeechError("unavailable", f"UNAVAILABLE: {message}")
    code = _CODE.search(message)
    return SpeechError(_MESSAGE_OUTCOMES[code[1]] if code else "error", message)
