"""Options that protect a server, and how given options override them."""

import re
import stat
from pathlib import Path

import pytest

from scripts.server.protection import (
    ADMIN_KEY_VARIABLE,
    LIMITS,
    LOCAL,
    AdminKeyError,
    choose_admin_key,
    protections,
    region_options,
)

KEY = "0123456789-abcdef"
NEW = "  --http-max-input-size <integer>\n  --grpc-max-response-pool-size <integer>\n"
APIS = "model-repository,shared-memory,trace,logging"
RESTRICTIONS = [f"--http-restricted-api={APIS}:admin-key={KEY}", f"--grpc-restricted-protocol={APIS}:admin-key={KEY}"]


def test_default_options() -> None:
    assert protections([], NEW, KEY) == [*LOCAL, *LIMITS, *region_options("python"), *RESTRICTIONS]


def test_omits_limits_that_the_release_does_not_have() -> None:
    assert protections([], "  --http-port <integer>\n", KEY) == [*LOCAL, *region_options("python"), *RESTRICTIONS]


@pytest.mark.parametrize(
    "given",
    [
        ["--http-address=0.0.0.0"],
        ["--http-address", "0.0.0.0"],
        ["--http-max-input-size=1024"],
        ["--backend-config=python,shm-default-byte-size=1048576"],
        ["--backend-config", "python,shm-default-byte-size=1048576"],
    ],
)
def test_a_given_option_overrides_the_default(given: list[str]) -> None:
    options = protections(given, NEW, KEY)
    name = "=".join(given).rpartition("=")[0]
    assert not [option for option in options if option.startswith(f"{name}=")]
    assert len(options) == len(protections([], NEW, KEY)) - 1


def test_unrelated_options_change_nothing() -> None:
    given = ["--backend-config=tensorrt,plugins=a.so", "--http-address-of-another-kind=1"]
    assert protections(given, NEW, KEY) == protections([], NEW, KEY)


@pytest.mark.parametrize("separator", ["=", None])
def test_an_api_that_is_already_restricted_keeps_its_key(separator: str | None) -> None:
    """Triton rejects an API that is in two groups."""
    name, value = "--http-restricted-api", "trace,inference:other-key=other"
    given = [f"{name}={value}"] if separator else [name, value]
    [first, second] = protections(given, NEW, KEY)[-2:]
    assert first == f"--http-restricted-api=model-repository,shared-memory,logging:admin-key={KEY}"
    assert second == RESTRICTIONS[1]


def test_adds_no_restriction_if_all_apis_are_restricted() -> None:
    assert protections([f"--grpc-restricted-protocol={APIS}:a=b"], NEW, KEY)[-1] == RESTRICTIONS[0]


def test_each_start_generates_a_new_key(tmp_path: Path) -> None:
    file = tmp_path / "build" / "admin_key"
    first = choose_admin_key({}, file)
    file.chmod(0o644)
    second = choose_admin_key({ADMIN_KEY_VARIABLE: ""}, file)
    assert file.read_text() == f"{second}\n"
    assert first != second
    assert re.fullmatch(r"[0-9a-f]{32}", second)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_given_key_is_not_written_to_disk(tmp_path: Path) -> None:
    assert choose_admin_key({ADMIN_KEY_VARIABLE: KEY}, tmp_path / "admin_key") == KEY
    assert not (tmp_path / "admin_key").exists()


@pytest.mark.parametrize("key", ["short", "with:a=colon-and-more", "two words two words", f"{KEY}\n"])
def test_rejects_a_key_that_triton_would_misread(key: str, tmp_path: Path) -> None:
    with pytest.raises(AdminKeyError, match=f"^{ADMIN_KEY_VARIABLE}: 16 or more letters"):
        choose_admin_key({ADMIN_KEY_VARIABLE: key}, tmp_path / "admin_key")
