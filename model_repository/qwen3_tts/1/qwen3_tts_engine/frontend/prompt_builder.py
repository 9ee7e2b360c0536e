"""Builds the talker's input rows from a request (docs/model.md, Prompt rows)."""

from collections import deque
from collections.abc import Sequence
from copy import copy
from functools import partial
from pathlib import Path

import numpy as np

from qwen3_tts_engine.checkpoint.alignment import Alignment, TextLayout
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig, max_positions
from qwen3_tts_engine.core.streams import NONE, Prompt, Sink, Stream, no_prompt
from qwen3_tts_engine.core.words import WordTimes
from qwen3_tts_engine.frontend.languages import AUTO, language_name
from qwen3_tts_engine.frontend.modes import check_mode, describe
from qwen3_tts_engine.frontend.prompt_rows import PromptRows
from qwen3_tts_engine.frontend.spoken_text import Rule, SpokenText
from qwen3_tts_engine.frontend.streamed_text import StreamedText, pieces_of
from qwen3_tts_engine.frontend.text_pieces import MAX_TOKEN_CHARACTERS, Piece, PiecewiseText, parts_of
from qwen3_tts_engine.frontend.text_rules import MARKUP, READ_LANGUAGES, Lexicon, Numbers, Refusal, check_normalizer
from qwen3_tts_engine.frontend.tokenizer import TextTokenizer
from qwen3_tts_engine.request import LIST_SPEAKERS, InvalidRequest, Sampling, SpeechOptions, SynthesisRequest
from qwen3_tts_engine.voice import Voice

# Part of the names of languages that only a speaker selects.
DIALECT = "dialect"


class PromptBuilder:
    """Builds prompts for one checkpoint and validates requests against it."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        alignment: Alignment | None = None,
        *,
        speaks_rest: bool = False,
    ) -> None:
        """`alignment` are the checkpoint's heads for word times, if it has any; with `speaks_rest` they show where the
        rest of a text is to be spoken."""
        self._config = config
        self._speaks_rest = speaks_rest
        self._aligned_layouts = set(alignment.layouts) if alignment else set()
        self._defaults = checkpoint.generation
        self._part_tokens = config.part_tokens(checkpoint.generation.part_text_tokens)
        self._model = checkpoint.config
        self._talker = checkpoint.config.talker_config
        # Fine-tuned checkpoints name speakers with capitals.
        self._speakers = {name.casefold(): name for name in self._talker.spk_id}
        self._tokenizer = TextTokenizer(checkpoint, config.max_text_tokens)
        self._max_characters = MAX_TOKEN_CHARACTERS * config.max_text_tokens
        self._normalizes = config.normalize_text
        if self._normalizes:
            check_normalizer()
        self._lexicon = Lexicon.read(Path(config.lexicon_file)) if config.lexicon_file else None

    @property
    def mode(self) -> str:
        """The checkpoint's mode and its fields, for error messages."""
        return describe(self._model)

    @property
    def num_codebooks(self) -> int:
        return self._talker.num_code_groups

    def speakers(self) -> list[dict[str, str | None]]:
        """Name and dialect of each built-in speaker. Raises InvalidRequest for a checkpoint without speakers."""
        if self._model.tts_model_type != "custom_voice":
            raise InvalidRequest("operation", LIST_SPEAKERS, self.mode)
        dialects = self._talker.spk_is_dialect
        return [{"name": name, "dialect": dialects.get(name) or None} for name in sorted(self._talker.spk_id)]

    def tokenize(self, texts: Sequence[object]) -> None:
        """See TextTokenizer.ahead."""
        self._tokenizer.ahead(texts)

    def stream(self, request: SynthesisRequest, sink: Sink, key: str, arrived: float | None = None) -> Stream:
        """The stream of a request; `arrived` is in perf_counter seconds, by default now.

        Raises InvalidRequest naming the field that this checkpoint cannot serve.
        """
        spoken = self._spoken_text(request, request.text)
        last_pause = 0
        if spoken is None:
            pieces = self._tokenizer.pieces(request.text, self._part_tokens)
        else:
            text = PiecewiseText(self._tokenizer, self._part_tokens)
            pieces, last_pause = pieces_of(spoken, text, request.text, ends=True), text.pause_samples
        prompt, *following = (self.build(request, ids, pause) for ids, pause in parts_of(pieces))
        sampling = Sampling.from_defaults(self._defaults, request)
        if following and request.max_frames is None:
            for part in (prompt, *following):
                part.max_frames = self._config.default_max_frames(part.num_spoken)
        max_frames = self._max_frames(request, prompt, *following)
        stream = Stream(key, prompt, sampling, max_frames, sink, request.cloned, following=deque(following))
        stream.is_withheld = request.trims(self._config.trim_silence)
        stream.last_pause = last_pause
        if arrived is not None:
            stream.arrived = arrived
        self._follow(stream, request)
        if stream.words:
            for piece in pieces:
                written = spoken.written(piece.start, len(piece.text)) if spoken else ()
                stream.words.add(piece.start, piece.text, self.spans(piece), ends=piece.ends, written=written)
        self._check_positions(stream.num_positions)
        return stream

    def streamed(self, request: SpeechOptions, sink: Sink, key: str) -> "StreamedText":
        """A stream without text yet, in the streaming layout; raises like `stream`."""
        builder = copy(self)
        builder._config = self._config.model_copy(update={"text_layout": "streaming"})
        # Validates the rest of the request; any text will do.
        any_part = builder.build(request, [self._model.tts_eos_token_id])
        config = self._config
        stream = Stream(
            key,
            no_prompt(self.num_codebooks),
            Sampling.from_defaults(self._defaults, request),
            config.max_frames_limit if request.max_frames is None else self._max_frames(request),
            sink,
            request.cloned,
            is_open=True,
            reserved_frames=request.max_frames or min(config.streamed_part_frames, config.max_frames_limit),
            is_withheld=request.trims(self._config.trim_silence),
        )
        builder._follow(stream, request)
        self._check_positions(len(any_part) + stream.reserved_frames)
        spoken = self._spoken_text(request) or SpokenText([], self._max_characters)
        return StreamedText(builder, request, stream, spoken, PiecewiseText(self._tokenizer, self._part_tokens))

    def _follow(self, stream: Stream, request: SpeechOptions) -> None:
        """Have the stream's position in its text followed, if somebody needs it."""
        speaks_rest = self._speaks_rest and self._layout in self._aligned_layouts
        if speaks_rest or request.word_times:
            stream.words, stream.tells_words = WordTimes(), request.word_times
        if speaks_rest:
            stream.rest_of = partial(self._part_of, request)

    def _part_of(self, request: SpeechOptions, ids: list[int]) -> Prompt:
        prompt = self.build(request, ids)
        if request.max_frames is None:
            prompt.max_frames = self._config.default_max_frames(prompt.num_spoken)
        return prompt

    def _spoken_text(self, request: SpeechOptions, text: str = "") -> SpokenText | None:
        """What the request's rules make of a text; None if they leave this one as it is. Raises InvalidRequest."""
        config, rules = self._config, list[Rule]()
        match request.text_policy or config.text_policy:
            case "plain":
                rules += MARKUP.values()
            case "refuse":
                rules.append(Refusal())
        if request.lexicon:
            rules.append(Lexicon.parse(request.lexicon))
        if self._lexicon:
            rules.append(self._lexicon)
        language = language_name(request.language)
        # The setting is for the languages that have rules.
        if request.normalize_text or (
            request.normalize_text is None and self._normalizes and language in READ_LANGUAGES
        ):
            rules.append(Numbers.of(language))
        return SpokenText(rules, self._max_characters) if rules or "<" in text else None

    def spans(self, piece: Piece) -> list[tuple[int, int]]:
        """The characters of each token of a piece, in its text."""
        return self._tokenizer.spans(piece.text)

    def ids_to_begin(self, request: SpeechOptions) -> int:
        """Number of ids that fill a part's prompt rows, so that it can start before its text is complete."""
        voice = request.cloned
        if voice is None or voice.codes is None:
            return 1
        return max(1, 1 + len(voice.codes) - len(self._tokenizer.reference(voice.text or "")))

    def begin_part(self, request: SpeechOptions, ids: list[int], reserved_frames: int) -> Prompt:
        """The prompt of a part that begins with `ids`; stays open for more when they fill its rows."""
        prompt = self.build(request, ids)
        prompt.max_frames = reserved_frames
        if prompt.trailing:
            # The end-of-text token is fed only once the text is complete.
            prompt.trailing.pop()
            prompt.is_open = True
        return prompt

    def end_part(self, request: SpeechOptions, prompt: Prompt) -> None:
        """Mark a part's text as complete."""
        if prompt.is_open:
            prompt.arrived.append(self._model.tts_eos_token_id)
            prompt.complete = True
        if request.max_frames is None and prompt.max_frames is not None:
            prompt.max_frames = min(prompt.max_frames, self._config.default_max_frames(prompt.num_spoken))

    def build(self, request: SpeechOptions, spoken: list[int], pause: int = 0) -> Prompt:
        """The prompt of a text's ids or of those of a part of it, before which are `pause` samples of silence.

        Raises InvalidRequest naming the field that this checkpoint cannot serve.
        """
        check_mode(self._model, request)
        self._check_word_times(request)
        speaker = self._speaker(request)
        language = self._language(request.language, speaker)
        rows = PromptRows(self._talker.num_code_groups, self._config.page_size)
        rows.add(self._instruct(request), NONE)
        rows.add(self._tokenizer.role, NONE)
        self._add_prefix(rows, language, None if speaker is None else self._talker.spk_id[speaker], request.cloned)
        rows.end_prefix()
        trailing = self._add_text(rows, spoken, request.cloned)
        prompt = rows.prompt(trailing, len(spoken))
        prompt.layout, prompt.pause = self._layout, pause
        return prompt

    def check(self, request: SpeechOptions) -> None:
        """Validate all that does not depend on the voice; raises InvalidRequest."""
        check_mode(self._model, request)
        self._check_word_times(request)
        self._language(request.language, None)
        if isinstance(request, SynthesisRequest):
            self._tokenizer.spoken(request.text)

    def check_reference(self, text: str) -> None:
        """Validate the text of a reference; raises InvalidRequest."""
        self._tokenizer.reference(text)

    def _check_word_times(self, request: SpeechOptions) -> None:
        if request.word_times and self._layout not in self._aligned_layouts:
            having = f"has them in {', '.join(sorted(self._aligned_layouts))}" if self._aligned_layouts else "has none"
            raise InvalidRequest(
                "word_times", True, f"requires attention heads that follow the text, in the layout {self._layout}: "
                f"this checkpoint {having} (docs/word-times.md)"
            )  # fmt: skip

    def _check_positions(self, needed: int) -> None:
        """Raises InvalidRequest for more positions than the key/value cache has for one stream."""
        if needed > (limit := max_positions(self._model, self._config)):
            raise InvalidRequest("max_frames", f"{needed} positions", f"a prompt and its frames take at most {limit}")

    def _max_frames(self, request: SpeechOptions, *parts: Prompt) -> int:
        """The request's cap, or one derived from its text; raises InvalidRequest above the server's limit."""
        limit = self._config.max_frames_limit
        if request.max_frames is None:
            return min(limit, sum(self._config.default_max_frames(part.num_spoken) for part in parts))
        if request.max_frames > limit:
            raise InvalidRequest("max_frames", request.max_frames, f"at most {limit}")
        return request.max_frames

    def _speaker(self, request: SpeechOptions) -> str | None:
        if self._model.tts_model_type != "custom_voice":
            return None
        choice = f"choose one of {', '.join(sorted(self._talker.spk_id))}"
        if request.speaker is None:
            raise InvalidRequest("speaker", None, f"required: {choice}")
        if (name := self._speakers.get(request.speaker.casefold())) is None:
            raise InvalidRequest("speaker", request.speaker, f"unknown: {choice}")
        return name

    def _language(self, language: str, speaker: str | None) -> int:
        ids = self._talker.codec_language_id
        name = language_name(language)
        if name != AUTO and (name not in ids or DIALECT in name):
            spoken = sorted(n for n in ids if DIALECT not in n)
            raise InvalidRequest(
                "language", language, f"unknown: choose one of {', '.join([AUTO, *spoken])}, or its code"
            )
        dialect = self._talker.spk_is_dialect.get(speaker, False) if speaker else False
        # As in the reference, a dialect speaker uses the dialect also for language=chinese (docs/model.md, Modes).
        if dialect and name in (AUTO, "chinese"):
            return ids[dialect]
        return NONE if name == AUTO else ids[name]

    def _instruct(self, request: SpeechOptions) -> list[int]:
        # The reference silently drops instruct on the small CustomVoice model (docs/model.md, Modes).
        ignored = self._model.tts_model_size == "0b6" and self._model.tts_model_type == "custom_voice"
        if request.instruct is None or ignored:
            return []
        return self._tokenizer.instruct(request.instruct)

    def _add_prefix(self, rows: PromptRows, language: int, speaker: int | None, voice: Voice | None) -> None:
        talker, model = self._talker, self._model
        codes = [talker.codec_think_id, talker.codec_think_bos_id, language, talker.codec_think_eos_id]
        if language == NONE:
            codes = [talker.codec_nothink_id, talker.codec_think_bos_id, talker.codec_think_eos_id]
        for code in codes if speaker is None else [*codes, speaker]:
            rows.add([model.tts_pad_token_id], code)
        if voice is not None:
            rows.add_vector(model.tts_pad_token_id, voice.x_vector)
        rows.add([model.tts_bos_token_id], talker.codec_pad_id)

    def _add_text(self, rows: PromptRows, spoken: list[int], voice: Voice | None) -> list[int]:
        """Returns the ids that are fed after the prompt."""
        if voice is not None and voice.codes is not None:
            return self._add_in_context(rows, spoken, voice.text or "", voice.codes)
        talker, model = self._talker, self._model
        text = [*spoken, model.tts_eos_token_id]
        rows.begin_text()
        if self._layout == "streaming":
            rows.add(text[:1], talker.codec_bos_id)
            return text[1:]
        rows.add(text, talker.codec_pad_id)
        rows.add([model.tts_pad_token_id], talker.codec_bos_id)
        return []

    def _add_in_context(self, rows: PromptRows, spoken: list[int], ref_text: str, codes: np.ndarray) -> list[int]:
        """Prepend the reference: its text before the text, its frames before the new ones."""
        talker, model = self._talker, self._model
        if len(codes) > (limit := self._config.max_reference_frames):
            # The voice was registered under another limit.
            raise InvalidRequest("voice", f"{len(codes)} frames", f"max_reference_seconds allows {limit} frames")
        reference = self._tokenizer.reference(ref_text)
        text = [*reference, *spoken, model.tts_eos_token_id]
        frames = np.full((1 + len(codes), self.num_codebooks), NONE, np.int32)
        frames[0, 0] = talker.codec_bos_id
        frames[1:] = codes
        rows.begin_text(len(reference))
        streams_text = self._layout == "streaming"
        rows.end_prefix(min(len(reference), len(frames)) if streams_text else len(reference))
        if streams_text:
            padded = text[: len(frames)] + [model.tts_pad_token_id] * (len(frames) - len(text))
            rows.add_frames(padded, frames)
            return text[len(frames) :]
        rows.add(text, talker.codec_pad_id)
        rows.add_frames([model.tts_pad_token_id] * len(frames), frames)
        return []

    @property
    def _layout(self) -> TextLayout:
        if self._config.text_layout != "auto":
            return self._config.text_layout
        return "streaming" if self._model.tts_model_type == "base" else "full"
