"""The demo voice's tokenizer, as the server reads its files."""

import pytest

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.frontend.tokenizer import TextTokenizer
from scripts.benchmarks.demo_voice import CHECKPOINT
from scripts.demo_voice.texts import training_texts
from scripts.demo_voice.tokenizer import QUOTES


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    return TextTokenizer(Checkpoint.open(str(CHECKPOINT)), 100)


@pytest.mark.parametrize("quote", QUOTES)
def test_quotation_marks_are_read_as_apostrophes(tokenizer: TextTokenizer, quote: str) -> None:
    quoted = "He said 'hello there,' and left. 'The rain stopped,' she said."
    assert tokenizer.encode(quoted.replace("'", quote)) == tokenizer.encode(quoted)


def test_a_typographic_apostrophe_is_one(tokenizer: TextTokenizer) -> None:
    assert tokenizer.encode("It\u2019s John\u2019s, don\u2019t!") == tokenizer.encode("It's John's, don't!")


def test_the_voice_has_learned_none_of_the_marks() -> None:
    """Entries of their own would be noise."""
    assert not set(QUOTES) & set("".join(training_texts()))
