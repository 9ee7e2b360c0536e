"""Stream outcomes, exit codes and exceptions."""

import re
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


class ExitCode(IntEnum):
    OK = 0
    USAGE = 2  # bad flag, prompt file, record; argparse uses the same
    SERVER = 3  # unreachable, not ready, without the model
    REQUEST = 4  # refused or failed
    TIMEOUT = 5
    INTERRUPTED = 130


class ClientError(Exception):
    """Ends a command with a message and an exit code."""

    def __init__(self, message: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(message)
        self.code = code


class SpeechError(Exception):
    """A failed stream; `outcome` is one of OUTCOMES."""

    def __init__(self, outcome: str, message: str) -> None:
        super().__init__(message)
        self.outcome = outcome


def from_rpc(error: grpc.RpcError) -> SpeechError:
    return SpeechError(_RPC_OUTCOMES.get(error.code(), "error"), f"{error.code().name}: {error.details()}")


def from_message(message: str) -> SpeechError:
    code = _CODE.search(message)
    return SpeechError(_MESSAGE_OUTCOMES[code[1]] if code else "error", message)
