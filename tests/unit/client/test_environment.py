"""What a record says of the code that was measured."""

import pytest

from qwen3_tts_client.records import environment


@pytest.mark.parametrize(("changed", "expected"), [("", "c0ffee"), (" M client/pyproject.toml", "c0ffee-dirty")])
def test_a_record_says_whether_the_checkout_was_modified(
    monkeypatch: pytest.MonkeyPatch, changed: str, expected: str
) -> None:
    monkeypatch.delenv("GIT_COMMIT", raising=False)
    answers = {"rev-parse": "c0ffee", "status": changed}
    monkeypatch.setattr(environment, "_output", lambda *command: answers[command[3]])
    assert environment.commit() == expected


def test_a_copy_without_its_repository_is_told_its_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_COMMIT", "c0ffee")
    monkeypatch.setattr(environment, "_output", lambda *command: pytest.fail("asked git"))
    assert environment.commit() == "c0ffee"
