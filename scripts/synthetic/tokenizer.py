"""A small byte-level BPE in the files of the Qwen2 tokenizer: common words are tokens, everything else is bytes."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from scripts.synthetic.configs import Size

# In the order of their ids in the released tokenizer_config.json, which continue those of vocab.json.
_ADDED_TOKENS = (
    "<|endoftext|> <|im_start|> <|im_end|> <|object_ref_start|> <|object_ref_end|> <|box_start|> <|box_end|> "
    "<|quad_start|> <|quad_end|> <|vision_start|> <|vision_end|> <|vision_pad|> <|image_pad|> <|video_pad|> "
    "<tool_call> </tool_call> <|fim_prefix|> <|fim_middle|> <|fim_suffix|> <|fim_pad|> <|repo_name|> <|file_sep|> "
    "<tool_response> </tool_response> <think> </think> <|audio_start|> <|audio_end|> "
    "<tts_pad> <tts_text_bos> <tts_text_eod> <tts_text_bos_single>"
)
ADDED_TOKENS = _ADDED_TOKENS.split()

ASSISTANT = "assistant"
ROLES = (ASSISTANT, "user", "system")
_WORDS = (
    "the of and to in is you that it he was for on are as with his they at be this have from or one had by word but "
    "not what all were we when your can said there use an each which she do how their if will up other about out many "
    "then them these so some her would make like him into time has look two more write go see number no way could "
    "people my than first water been call who its now find long down day did get come made may part speech voice "
    "hello world please thank good morning speak slowly quickly happy sad read sound stream"
)
WORDS = _WORDS.split()


@dataclass(frozen=True)
class TextTokenizer:
    """The contents of vocab.json and merges.txt, and the ids of the added tokens."""

    vocab: dict[str, int]
    merges: list[tuple[str, str]]

    def added_id(self, token: str) -> int:
        return len(self.vocab) + ADDED_TOKENS.index(token)

    def ids_for_config(self) -> dict[str, int]:
        """The text ids that config.json names."""
        return {
            "assistant_token_id": self.vocab[ASSISTANT],
            "im_start_token_id": self.added_id("<|im_start|>"),
            "im_end_token_id": self.added_id("<|im_end|>"),
            "tts_pad_token_id": self.added_id("<tts_pad>"),
            "tts_bos_token_id": self.added_id("<tts_text_bos>"),
            "tts_eos_token_id": self.added_id("<tts_text_eod>"),
        }

    def config(self) -> dict[str, Any]:
        """tokenizer_config.json."""
        return {
            "add_bos_token": False,
            "add_prefix_space": False,
            "added_tokens_decoder": {str(self.added_id(token)): _added(token) for token in ADDED_TOKENS},
            "bos_token": None,
            "clean_up_tokenization_spaces": False,
            "eos_token": "<|im_end|>",
            "errors": "replace",
            "model_max_length": 131072,
            "pad_token": "<|endoftext|>",
            "processor_class": "Qwen3TTSProcessor",
            "split_special_tokens": False,
            "tokenizer_class": "Qwen2Tokenizer",
            "unk_token": None,
        }


def text_tokenizer(size: Size) -> TextTokenizer:
    """The tokenizer of that size; real sizes have the released number of entries, and so the released ids."""
    entries, assistant = (2000, 1999) if size == "tiny" else (151643, 77091)
    alphabet = byte_alphabet()
    merges = _merges((*ROLES, *WORDS, *(f"{alphabet[ord(' ')]}{word}" for word in WORDS)))
    tokens = byte_order()
    tokens += [token for token in dict.fromkeys(map("".join, merges)) if token != ASSISTANT]
    tokens += [f"<unused{i}>" for i in range(entries - 1 - len(tokens))]
    tokens.insert(assistant, ASSISTANT)
    return TextTokenizer({token: i for i, token in enumerate(tokens)}, merges)


def byte_alphabet() -> dict[int, str]:
    """The printable character for each byte in byte-level BPE files."""
    printable = _printable()
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def _printable() -> list[int]:
    return [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]


def byte_order() -> list[str]:
    """The first 256 tokens, in which a newline has the id 198 in every size."""
    alphabet, printable = byte_alphabet(), _printable()
    return [alphabet[byte] for byte in (*printable, *(byte for byte in range(256) if byte not in printable))]


def _merges(words: tuple[str, ...]) -> list[tuple[str, str]]:
    """Merges by rank, lowest first, that turn each word into one token.

    A later merge never breaks an earlier word, which had a merge of lower rank at every step.
    """
    ranks: dict[tuple[str, str], int] = {}
    for word in words:
        while len(pieces := encode(list(word), ranks)) > 1:
            ranks[pieces[0], pieces[1]] = len(ranks)
    return list(ranks)


def encode(pieces: list[str], ranks: dict[tuple[str, str], int]) -> list[str]:
    """Byte-pair encoding: joins the pair with the lowest-ranked merge until none is left."""
    while known := [(ranks[pair], at) for at, pair in enumerate(pairwise(pieces)) if pair in ranks]:
        _, at = min(known)
        pieces = [*pieces[:at], pieces[at] + pieces[at + 1], *pieces[at + 2 :]]
    return pieces


def _added(token: str) -> dict[str, Any]:
    flags = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False}
    return {"content": token, **flags, "special": True}
