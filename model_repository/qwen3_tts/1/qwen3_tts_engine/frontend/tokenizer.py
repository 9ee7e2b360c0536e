"""Tokenizes text within the chat template (docs/model.md, Text tokens)."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CheckpointError, TokenizerConfig, read_config
from qwen3_tts_engine.frontend.text_pieces import (
    MAX_TOKEN_CHARACTERS,
    UNSPOKEN,
    Piece,
    PiecewiseText,
    can_be_spoken,
)
from qwen3_tts_engine.request import InvalidRequest

# Pre-tokenizer pattern of the Qwen2 tokenizer; the released files name the tokenizer without the pattern.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Characters from which on other threads run meanwhile: 16 000 take 5 ms, 100 less than it may take to get the
# interpreter's lock back from one of them.
LONG_TEXT = 1000
# One text is not worth a pool of threads.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# The beginning of a text, tokenized alone, may have a few more ids than the whole text; far fewer than these.
ALONE_TOKENS = 32


class TextTokenizer:
    def __init__(self, checkpoint: Checkpoint, max_tokens: int) -> None:
        self._tokenizer = _read_tokenizer(checkpoint)
        self.max_tokens = max_tokens
        self._ahead: dict[str, list[int]] = {}
        added = self._tokenizer.get_added_tokens_decoder().values()
        self._control_tokens = sorted((token.content for token in added), key=len, reverse=True)

    @cached_property
    def role(self) -> list[int]:
        """Ids of the assistant header."""
        return self.encode("<|im_start|>assistant\n")

    def ahead(self, texts: Sequence[object]) -> None:
        """Tokenizes what is to be encoded next, without the interpreter's lock; leaves out all but short texts."""
        clean = [text.strip() for text in texts if isinstance(text, str) and len(text) < LONG_TEXT]
        encodings = self._tokenizer.encode_batch_fast(clean, add_special_tokens=False)
        self._ahead = dict(zip(clean, (encoding.ids for encoding in encodings), strict=True))

    def spoken(self, text: str) -> list[int]:
        """Ids of a text to speak; raises InvalidRequest for text that is empty, too long or contains control tokens."""
        return self._encode("text", text)

    def pieces(self, text: str, part_tokens: int) -> list[Piece]:
        """A text to speak, split at sentence ends after `part_tokens` tokens (0: never); raises like `spoken`."""
        whole = self.spoken(text)
        if not part_tokens or len(whole) + ALONE_TOKENS < part_tokens:
            return [Piece(whole, True, text.strip(), len(text) - len(text.lstrip()))]
        pieces = PiecewiseText(self, part_tokens)
        return [*pieces.add(text), *pieces.end()]

    def spans(self, text: str) -> list[tuple[int, int]]:
        """First character of each token that `encode` returns, and the character after its last one."""
        spans: list[tuple[int, int]] = self._tokenizer.encode(text, add_special_tokens=False).offsets
        return spans

    def reference(self, text: str) -> list[int]:
        """Ids of a reference's transcript; raises like `spoken`."""
        return self._encode("ref_text", text)

    def instruct(self, text: str) -> list[int]:
        """Ids of a style instruction with its template; raises like `spoken`."""
        return self._encode("instruct", text, "<|im_start|>user\n{}<|im_end|>\n")

    def _encode(self, field: str, text: str, template: str = "{}") -> list[int]:
        clean = self._sanitise(field, text)
        ids = self.encode(template.format(clean))
        if len(ids) > self.max_tokens:
            raise InvalidRequest(field, clean, f"{len(ids)} tokens, at most {self.max_tokens} are allowed")
        return ids

    def _sanitise(self, field: str, text: str) -> str:
        # Stripped, a text has the ids that it has within the template (docs/model.md, Text tokens).
        clean = text.strip()
        if not clean:
            raise InvalidRequest(field, text, "must contain more than white space")
        if field == "text" and not can_be_spoken(clean):
            raise InvalidRequest(field, clean, UNSPOKEN)
        if len(clean) > (limit := MAX_TOKEN_CHARACTERS * self.max_tokens):
            raise InvalidRequest(field, clean, f"at most {limit} characters")
        self.check(field, clean)
        return clean

    def check(self, field: str, text: str) -> None:
        """Raises InvalidRequest for control tokens."""
        for token in self._control_tokens:
            if token in text:
                raise InvalidRequest(field, token, "control tokens are not allowed")

    def encode(self, text: str) -> list[int]:
        if (known := self._ahead.get(text)) is not None:
            return [*known]
        if len(text) < LONG_TEXT:
            encoding = self._tokenizer.encode(text, add_special_tokens=False)
        else:
            # Only for a batch does the library give up the interpreter's lock.
            [encoding] = self._tokenizer.encode_batch_fast([text], add_special_tokens=False)
        ids: list[int] = encoding.ids
        return ids


def _read_tokenizer(checkpoint: Checkpoint) -> Tokenizer:
    paths = [checkpoint.path(name) for name in checkpoint.tokenizer_files]
    tokenizer = _load(*paths) if len(paths) == 1 else _assemble(*paths)
    _check_embedded(tokenizer, paths[0], checkpoint)
    _check_control_ids(tokenizer, paths[-1], checkpoint)
    return tokenizer


def _load(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises a bare Exception
        raise CheckpointError(f"{path}: not a tokenizer: {error}") from None
    # Settings of the training that wrote it.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _assemble(vocabulary: Path, merges: Path, settings: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer(models.BPE.from_file(str(vocabulary), str(merges)))
    except Exception as error:  # the library raises a bare Exception
        raise CheckpointError(f"{vocabulary}, {merges}: not a byte-level BPE: {error}") from None
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(_added_tokens(read_config(settings, TokenizerConfig)))
    return tokenizer


def _added_tokens(settings: TokenizerConfig) -> list[AddedToken]:
    added = sorted(settings.added_tokens_decoder.items())
    return [AddedToken(token.content, special=True, normalized=False) for _, token in added]


def _check_embedded(tokenizer: Tokenizer, vocabulary: Path, checkpoint: Checkpoint) -> None:
    size = checkpoint.config.talker_config.text_vocab_size
    token, token_id = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if token_id >= size:
        wrong = f"{token!r} has id {token_id}, talker_config.text_vocab_size of config.json is {size}"
        raise CheckpointError(f"{vocabulary}: {wrong}")


def _check_control_ids(tokenizer: Tokenizer, path: Path, checkpoint: Checkpoint) -> None:
    config = checkpoint.config
    expected = {"<|im_start|>": config.im_start_token_id, "<|im_end|>": config.im_end_token_id}
    for content, token_id in expected.items():
        if tokenizer.token_to_id(content) != token_id:
            found = tokenizer.token_to_id(content)
            raise CheckpointError(f"{path}: {content} has id {found}, config.json says {token_id}")
