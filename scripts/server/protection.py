"""A server's addresses, the APIs that require the admin key, and size limits (docs/operations.md)."""

import os
import re
import resource
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ADMIN_KEY_VARIABLE = "QWEN3_TTS_ADMIN_KEY"
ADMIN_KEY = re.compile(r"[A-Za-z0-9_-]{16,}")
HTTP_HEADER = "admin-key"
GRPC_HEADER = f"triton-grpc-protocol-{HTTP_HEADER}"
RESTRICTED = ("model-repository", "shared-memory", "trace", "logging")
RESTRICTING_OPTIONS = ("--http-restricted-api", "--grpc-restricted-protocol")

LOCAL = tuple(f"--{protocol}-address=127.0.0.1" for protocol in ("http", "grpc", "metrics"))
# A reference of 30 s at 192 kHz is 23 MB. A full response pool blocks the thread that sends every stream's audio, so
# it exceeds max_frames_limit, the maximum chunks of a request.
LIMITS = ("--http-max-input-size=67108864", "--grpc-max-response-pool-size=8192")
# The memory shared by tritonserver and a Python model: initial size and growth step.
REGION_SETTINGS = ("shm-default-byte-size=67108864", "shm-growth-byte-size=16777216")
# The limit of its growth. 64 states of the released codec in FP32 take 333 MB each way on a CPU.
MAX_REGION_BYTES = 768 << 20


class AdminKeyError(ValueError):
    """The admin key is invalid; the message says what is allowed."""


def choose_admin_key(environment: Mapping[str, str], file: Path) -> str:
    """The key from the environment, else a new one, written to `file`. Raises AdminKeyError."""
    if given := environment.get(ADMIN_KEY_VARIABLE):
        if not ADMIN_KEY.fullmatch(given):
            raise AdminKeyError(f"{ADMIN_KEY_VARIABLE}: 16 or more letters, digits, '_' and '-' are allowed")
        return given
    key = new_admin_key()
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as written:
        written.write(f"{key}\n")
    return key


def new_admin_key() -> str:
    return secrets.token_hex(16)


def protections(given: Sequence[str], known: str, admin_key: str) -> list[str]:
    """tritonserver options that `given` does not set. `known` is its --help: older releases lack some limits."""
    limits = [option for option in LIMITS if f"{_name(option)} " in known]
    return [*absent([*LOCAL, *limits, *region_options("python")], given), *restrictions(given, admin_key)]


def region_options(backend: str) -> list[str]:
    return [f"--backend-config={backend},{setting}" for setting in REGION_SETTINGS]


def restrictions(given: Sequence[str], admin_key: str) -> list[str]:
    """Triton allows an API in one group only, so those that `given` restricts keep their key."""
    options = []
    for option in RESTRICTING_OPTIONS:
        taken = ",".join(re.findall(rf"{option}=([^:]*):", _joined(given))).split(",")
        if apis := [api for api in RESTRICTED if api not in taken]:
            options.append(f"{option}={','.join(apis)}:{HTTP_HEADER}={admin_key}")
    return options


def bound_files(process: int) -> None:
    """Limits the files of a tritonserver process, above all shared-memory regions, to MAX_REGION_BYTES.

    The Python backend copies a request into its region before the model sees it, without a limit of its own, and a
    region never shrinks. The process must ignore SIGXFSZ, as Python does; it then gets EFBIG, and the caller an error.
    """
    _, hard = resource.prlimit(process, resource.RLIMIT_FSIZE)
    resource.prlimit(process, resource.RLIMIT_FSIZE, (MAX_REGION_BYTES, hard))


def absent(options: Iterable[str], given: Sequence[str]) -> list[str]:
    """The options that `given` does not set."""
    return [option for option in options if f"{_name(option)}=" not in _joined(given)]


def _name(option: str) -> str:
    """The option without its value; a backend option's name includes the setting."""
    return option.rpartition("=")[0]


def _joined(options: Sequence[str]) -> str:
    """Makes `--name value` equal to `--name=value`."""
    return "=".join(options) + "="
