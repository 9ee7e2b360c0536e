"""Text in pieces: its ids are those of the whole text, and its parts do not depend on the pieces."""

import time
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers, trainers

from qwen3_tts_client.bench.prompt import DEFAULT_FILE, read_prompts
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.frontend.text_pieces import PiecewiseText, can_be_spoken, is_final, parts_of
from qwen3_tts_engine.frontend.tokenizer import TextTokenizer
from qwen3_tts_engine.request import InvalidRequest
from scripts.synthetic.tokenizer import ADDED_TOKENS

SENTENCES = [str(prompt.fields["text"]) for prompt in read_prompts(DEFAULT_FILE)]
# Characters that decide about boundaries, and characters that normalization joins or splits.
ALPHABET = (
    "ab Zé.,!?'’\"()$+=1२ \t\n\r\u00a0\u3000\u200b。，！我你はが゛\u3099\u0301\u0338가ᄀ\u1161Å\u212bßK\u0958…—«»"
)
TEXTS = st.one_of(
    st.text(st.sampled_from(ALPHABET), max_size=40),
    st.text(max_size=40),
    st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=4).map(" ".join),
).filter(lambda text: not any(token in text for token in ADDED_TOKENS))


@pytest.fixture(scope="module")
def tokenizer(tiny_checkpoint: Path) -> TextTokenizer:
    """The tokenizer with a vocabulary learnt from sentences in ten languages, which has long merges."""
    tokenizer = TextTokenizer(Checkpoint.open(str(tiny_checkpoint)), 4096)
    added = [token.content for token in tokenizer._tokenizer.get_added_tokens_decoder().values()]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=1900, special_tokens=added, initial_alphabet=alphabet, show_progress=False)
    tokenizer._tokenizer.train_from_iterator([*SENTENCES, *["assistant"] * 500], trainer)
    assert len(tokenizer.encode(SENTENCES[0])) < len(SENTENCES[0]) / 2
    return tokenizer


def cut(text: str, data: st.DataObject) -> list[str]:
    """Splits the text into random pieces."""
    at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=12)))
    return [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]


def pieced(tokenizer: TextTokenizer, pieces: list[str], limit: int) -> list[list[int]]:
    text = PiecewiseText(tokenizer, limit)
    parts: list[list[int]] = [[]]
    for piece in [*(p for chunk in pieces for p in text.add(chunk)), *text.end()]:
        parts[-1] += piece.ids
        if piece.ends:
            parts.append([])
    return [part for part in parts if part]


def whole(tokenizer: TextTokenizer, text: str, limit: int) -> list[list[int]]:
    """The ids of each part of a whole text."""
    return [ids for ids, _ in parts_of(tokenizer.pieces(text, limit))]


@settings(max_examples=400)
@given(text=TEXTS, data=st.data())
def test_pieces_have_the_ids_of_the_whole_text(tokenizer: TextTokenizer, text: str, data: st.DataObject) -> None:
    if not can_be_spoken(text):
        reason = "nothing of it can be spoken" if text.strip() else "must contain more than white space"
        with pytest.raises(InvalidRequest, match=reason):
            pieced(tokenizer, cut(text, data), 0)
        with pytest.raises(InvalidRequest, match=reason):
            tokenizer.spoken(text)
        return
    assert pieced(tokenizer, cut(text, data), 0) == [tokenizer.spoken(text)]


@settings(max_examples=400)
@given(text=TEXTS.filter(can_be_spoken))
def test_a_text_alone_has_its_ids_within_the_template(tokenizer: TextTokenizer, text: str) -> None:
    begin, end = "<|im_start|>assistant\n", "<|im_end|>\n"
    within = tokenizer.encode(begin + text.strip() + end + begin)
    before, after = len(tokenizer.encode(begin)), len(tokenizer.encode(end + begin))
    assert within[before:-after] == tokenizer.spoken(text) == tokenizer.reference(text)


@settings(max_examples=500)
@given(before=st.text(st.sampled_from(ALPHABET), min_size=1, max_size=12), after=st.text(min_size=1, max_size=12))
@example(before="\u0958", after="'a")  # NFC decomposes it
def test_a_final_boundary_does_not_depend_on_its_context(tokenizer: TextTokenizer, before: str, after: str) -> None:
    if is_final(before[-1], after[0]):
        assert tokenizer.encode(before + after) == tokenizer.encode(before) + tokenizer.encode(after)


@settings(max_examples=400)
@given(text=st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=12).map("".join), data=st.data())
def test_parts_do_not_depend_on_the_pieces(tokenizer: TextTokenizer, text: str, data: st.DataObject) -> None:
    limit = data.draw(st.integers(1, 60))
    expected = whole(tokenizer, text, limit)
    assert pieced(tokenizer, cut(text, data), limit) == expected
    assert pieced(tokenizer, list(text), limit) == expected


@settings(max_examples=300)
@given(text=TEXTS.filter(can_be_spoken), limit=st.integers(1, 60))
def test_splitting_into_parts_loses_no_text(tokenizer: TextTokenizer, text: str, limit: int) -> None:
    spoken = "".join(tokenizer._tokenizer.decode(part) for part in whole(tokenizer, text, limit))
    normal = tokenizer._tokenizer.normalizer.normalize_str(text)
    assert "".join(spoken.split()) == "".join(normal.split())


@settings(max_examples=300)
@given(text=TEXTS.filter(can_be_spoken), limit=st.integers(0, 60), data=st.data())
def test_pieces_know_where_their_text_is(tokenizer: TextTokenizer, text: str, limit: int, data: st.DataObject) -> None:
    incremental = PiecewiseText(tokenizer, limit)
    pieces = [piece for more in cut(text, data) for piece in incremental.add(more)]
    for piece in (*pieces, *incremental.end(), *tokenizer.pieces(text, limit)):
        assert text[piece.start : piece.start + len(piece.text)] == piece.text
        assert tokenizer.encode(piece.text) == piece.ids
        spans = tokenizer.spans(piece.text)
        assert len(spans) == len(piece.ids)
        assert all(0 <= first <= after <= len(piece.text) for first, after in spans)


def test_a_word_is_final_once_the_next_one_begins(tokenizer: TextTokenizer) -> None:
    text = PiecewiseText(tokenizer, 0)
    assert [text.add(piece) for piece in ("  ", "Hel", "lo")] == [[], [], []]
    assert [p.ids for p in text.add(" wor")] == [tokenizer.encode("Hello")]
    assert [p.ids for p in text.add("ld. ")] == [tokenizer.encode(" world.")]
    assert [(p.ids, p.ends) for p in text.end()] == [([], True)]


def test_a_clause_without_spaces_is_final_once_the_next_one_begins(tokenizer: TextTokenizer) -> None:
    text = PiecewiseText(tokenizer, 0)
    assert text.add("你好") == []
    assert [p.ids for p in text.add("，今天")] == [tokenizer.encode("你好")]
    assert [p.ids for p in text.add("天气怎么样？")] == [tokenizer.encode("，今天天气怎么样")]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("One two. Three four. Five.", ["One two.", "Three four.", "Five."]),
        ('He said "go." Then he went.', ['He said "go."', "Then he went."]),
        ("It costs 3.50 dollars. Cheap.", ["It costs 3.50 dollars.", "Cheap."]),
        ("今天天气很好。我们去公园吧！“好的。”他说。", ["今天天气很好。", "我们去公园吧！", "“好的。”", "他说。"]),
        ("Wait... what?! No.", ["Wait...", "what?!", "No."]),
        ("First line\nSecond line", ["First line", "Second line"]),
        ("Only one, and no end", ["Only one, and no end"]),
    ],
)
def test_parts_end_with_a_sentence(tokenizer: TextTokenizer, text: str, parts: list[str]) -> None:
    """Every sentence reaches the limit, and no clause exceeds twice the limit."""
    limit = min(len(tokenizer.encode(part)) for part in parts)
    found = whole(tokenizer, text, max(limit, 2))
    assert found == [tokenizer.encode(part) for part in parts]


def test_a_text_below_the_limit_is_one_part(tokenizer: TextTokenizer) -> None:
    text = "One two. Three four. Five."
    assert whole(tokenizer, text, 100) == [tokenizer.encode(text)]


def test_splits_an_endless_sentence_at_clauses_or_else_between_words(tokenizer: TextTokenizer) -> None:
    words = PiecewiseText(tokenizer, 10)
    [*cuts] = [p for p in words.add("no " * 40) if p.ends]
    assert [len(p.ids) for p in cuts] == [30]
    clauses = whole(tokenizer, "no no no no, " * 12, 10)
    assert {tuple(part[-1:]) for part in clauses} == {tuple(tokenizer.encode(","))}


@pytest.mark.parametrize("pieces", [["say <|im_", "end|> now"], ["<tts_pad>"], ["a ", "<tts", "_", "pad>"]])
def test_refuses_control_tokens_even_across_pieces(tokenizer: TextTokenizer, pieces: list[str]) -> None:
    text = PiecewiseText(tokenizer, 0)
    for piece in pieces[:-1]:
        text.add(piece)
    with pytest.raises(InvalidRequest, match="control tokens are not allowed"):
        text.add(pieces[-1])


def test_all_pieces_together_have_the_limits_of_a_single_request(tiny_checkpoint: Path) -> None:
    tokenizer = TextTokenizer(Checkpoint.open(str(tiny_checkpoint)), 8)
    text = PiecewiseText(tokenizer, 0)
    text.add("1 2 3 4 5")
    with pytest.raises(InvalidRequest, match="tokens, at most 8 are allowed"):
        text.add(" 6 7 8 9")
    with pytest.raises(InvalidRequest, match="129 characters, at most 128 are allowed"):
        PiecewiseText(tokenizer, 0).add("x" * 129)


@pytest.mark.parametrize(
    "text",
    ["\u3000", "a\u2003", "no ", "你好", "你。", "a" + "\u3000" * 999, "。\u0301"],
    ids=["wide blanks", "words", "narrow words", "no end", "clauses", "blanks behind a word", "marks"],
)
def test_processing_time_grows_linearly_with_the_text(
    tokenizer: TextTokenizer, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setattr(tokenizer, "max_tokens", 1 << 20)
    short, long = (processor_seconds(tokenizer, (text * 16_000)[:size]) for size in (2_000, 16_000))
    assert long / short < 24


def processor_seconds(tokenizer: TextTokenizer, text: str) -> float:
    taken = []
    for _ in range(3):
        pieces = PiecewiseText(tokenizer, 150)
        started = time.thread_time()
        pieces.add(text)
        taken.append(time.thread_time() - started)
    return min(taken)


def test_a_pause_ends_a_part(tokenizer: TextTokenizer) -> None:
    text = PiecewiseText(tokenizer, 0)
    pieces = [*text.pause(10), *text.add("One."), *text.pause(3), *text.pause(4), *text.add("Two "), *text.end()]
    assert parts_of(pieces) == [(tokenizer.encode("One."), 10), (tokenizer.encode("Two"), 7)]
    text.pause(5)
    assert text.pause_samples == 5
