"""A byte-level BPE learnt from the sentences, in the files of the Qwen2 tokenizer.

About 5 tokens a second of speech: streamed text, fed one token a frame, stays ahead of its speech.
"""

import json
import shutil
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from qwen3_tts_engine.frontend.tokenizer import QWEN2_SPLIT
from scripts.demo_voice.texts import DATA
from scripts.synthetic.tokenizer import ASSISTANT, ROLES, TextTokenizer, byte_alphabet, byte_order, encode

ENTRIES = 2016
FILES = ("vocab.json", "merges.txt", "tokenizer_config.json")
# Marks that the sentences do not have; they are read as the one that they have.
APOSTROPHE, QUOTES = "'", '"\u201c\u201d\u2018\u2019'
UNUSED = "<unused{}>"


def learn(texts: list[str]) -> TextTokenizer:
    """Merges by frequency; the roles of the chat template are tokens too."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    bpe = _pipeline(models.BPE())
    bpe.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=ENTRIES - 24, initial_alphabet=alphabet, show_progress=False)
    )
    ranks = {tuple(merge): rank for rank, merge in enumerate(json.loads(bpe.to_str())["model"]["merges"])}
    for word in ROLES:
        while len(pieces := encode(list(word), ranks)) > 1:
            ranks[pieces[0], pieces[1]] = len(ranks)
    tokens = list(dict.fromkeys([*byte_order(), *("".join(merge) for merge in ranks)]))
    tokens += [UNUSED.format(i) for i in range(ENTRIES - len(tokens))]
    return with_quotes(TextTokenizer({token: i for i, token in enumerate(tokens)}, list(ranks)))


def with_quotes(tokenizer: TextTokenizer) -> TextTokenizer:
    """Quotation marks have the id of the apostrophe; names of unused ids make room for theirs."""
    alphabet, vocab, merges = byte_alphabet(), dict(tokenizer.vocab), list(tokenizer.merges)
    unused = (name for name in map(UNUSED.format, range(ENTRIES)) if name in vocab)
    for quote in QUOTES:
        token, *rest = (alphabet[byte] for byte in quote.encode())
        for part in rest:
            if (merge := (token, part)) not in merges:
                merges.append(merge)
                vocab[token + part] = vocab.pop(next(unused))
            token += part
        vocab[token] = vocab[APOSTROPHE]
    return TextTokenizer(vocab, merges)


def write(tokenizer: TextTokenizer, folder: Path = DATA) -> None:
    (folder / "vocab.json").write_text(json.dumps(tokenizer.vocab, ensure_ascii=False, indent=0) + "\n")
    lines = ["#version: 0.2", *(f"{left} {right}" for left, right in tokenizer.merges)]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer.config(), ensure_ascii=False, indent=2) + "\n")


def copy_files(folder: Path) -> None:
    for name in FILES:
        shutil.copy(DATA / name, folder / name)


class SpokenIds:
    """Texts to ids of text tokens, and the ids of control tokens that config.json names."""

    def __init__(self, folder: Path = DATA) -> None:
        vocab = json.loads((folder / "vocab.json").read_text())
        self._bpe = _pipeline(models.BPE.from_file(str(folder / "vocab.json"), str(folder / "merges.txt")))
        self.control = TextTokenizer(vocab, []).ids_for_config()
        self.role = [self.control["im_start_token_id"], vocab[ASSISTANT], vocab["Ċ"]]
        self.rows = max(self.control.values()) + 2  # one more added token follows those in config.json

    def of(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._bpe.encode_batch(texts)]


def _pipeline(model: models.BPE) -> Tokenizer:
    bpe = Tokenizer(model)
    bpe.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated")
    bpe.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    return bpe
