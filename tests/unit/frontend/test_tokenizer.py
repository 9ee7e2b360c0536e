"""Tokenization of long texts and of several ones, which lets other threads run."""

import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread

import pytest

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.frontend import tokenizer
from qwen3_tts_engine.frontend.tokenizer import TextTokenizer

ATTEMPTS = 20
SENTENCE = "It was a bright cold day in April, and the clocks were striking thirteen. "


def longest_wait_share(job: Callable[[], object]) -> float:
    """The longest time for which this thread could not run, as a share of the time that `job` takes on another one."""
    spent = []

    def run() -> None:
        begun = time.perf_counter()
        job()
        spent.append(time.perf_counter() - begun)

    thread = Thread(target=run)
    longest, last = 0.0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    thread.join()
    return longest / spent[0]


@pytest.fixture
def texts(tiny_checkpoint: Path) -> TextTokenizer:
    return TextTokenizer(Checkpoint.open(str(tiny_checkpoint)), 4096)


def test_other_threads_run_while_a_long_text_is_tokenized(texts: TextTokenizer) -> None:
    text = SENTENCE * 20_000
    # Other processes may keep this thread waiting, too, but not each time.
    assert any(longest_wait_share(lambda: texts.encode(text)) < 0.5 for _ in range(ATTEMPTS))


SAMPLES = [
    SENTENCE * 40,
    "naïve café — „Grüße“ 1234, 你好，世界。\n\n\t…e\u0301 👩‍👩‍👧 <|im_start|>x",
    "a" * 5000,
    "",
]


def test_long_texts_have_the_same_ids(texts: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [texts.encode(sample) for sample in SAMPLES]
    for limit in (0, 10**9):
        monkeypatch.setattr(tokenizer, "LONG_TEXT", limit)
        assert [texts.encode(sample) for sample in SAMPLES] == expected


def test_other_threads_run_while_short_texts_are_tokenized_ahead(texts: TextTokenizer) -> None:
    many = [f"{SENTENCE}{i}" for i in range(20_000)]
    assert any(longest_wait_share(lambda: texts.ahead(many)) < 0.5 for _ in range(ATTEMPTS))


def test_texts_tokenized_ahead_have_the_same_ids(texts: TextTokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = [f" {sample.strip()}\n" for sample in (*SAMPLES[1:3], SENTENCE, SENTENCE)]
    expected = [texts.encode(sample.strip()) for sample in samples]
    monkeypatch.setattr(tokenizer, "LONG_TEXT", 10**9)
    texts.ahead([*samples, None, "", b"bytes"])
    # Known texts need no library.
    monkeypatch.setattr(texts, "_tokenizer", None)
    assert [texts.encode(sample.strip()) for sample in samples] == expected
    texts.encode(SENTENCE.strip()).clear()
    assert texts.encode(SENTENCE.strip()) == expected[-1]
