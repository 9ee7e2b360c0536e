"""What scripts.benchmarks.mixed_calls does beside its calls, which tests/e2e has."""

from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from scripts.benchmarks import mixed_calls


class Client:
    def __init__(self, *errors: str) -> None:
        self.errors = list(errors)

    def unregister_system_shared_memory(self, name: str, headers: dict[str, str]) -> None:
        if self.errors:
            raise InferenceServerException(self.errors.pop(0))


def unmap(client: Any) -> None:
    mixed_calls.unmap(client, {})


def test_a_region_in_use_is_released_once_it_is_not() -> None:
    in_use = "Cannot unregister shared memory region 'mixed_calls', it is currently in use."
    client = Client(in_use, in_use)
    unmap(client)
    assert not client.errors


def test_other_errors_and_a_region_that_stays_in_use_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InferenceServerException, match="forbidden"):
        unmap(Client("forbidden"))
    monkeypatch.setattr(mixed_calls, "UNMAP_SECONDS", 0.0)
    with pytest.raises(InferenceServerException, match="in use"):
        unmap(Client(*["in use"] * 9))
