"""Chooses the talker's attention heads that follow the text, from sentences that the checkpoint speaks.

No labels: a head that follows the text attends to later tokens in later frames, step by step and to few at a time, from
the first to the last (docs/word-times.md).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from qwen3_tts_engine.checkpoint.alignment import LAYOUTS, Alignment, AlignmentHeads, TextLayout
from qwen3_tts_engine.checkpoint.checkpoint import WEIGHTS, Checkpoint, load_tensors
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.tensor_shapes import talker_shapes
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.core.streams import Stream
from qwen3_tts_engine.frontend.languages import AUTO
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.interfaces import RunnerLimits
from qwen3_tts_engine.lifecycle.warm_up import DiscardSink
from qwen3_tts_engine.request import SynthesisRequest
from qwen3_tts_engine.talker.code_predictor import CodePredictor
from qwen3_tts_engine.talker.kv_cache import FrameCache, PagedCache
from qwen3_tts_engine.talker.loader import MovedTensors
from qwen3_tts_engine.talker.ops.interface import Attention, Hidden
from qwen3_tts_engine.talker.ops.torch_ops import GATHER_ROWS, TorchOps, norm_product, split_heads
from qwen3_tts_engine.talker.ops.torch_tracking import TorchTracking
from qwen3_tts_engine.talker.runner import TalkerRunner
from qwen3_tts_engine.talker.talker import Talker
from qwen3_tts_engine.talker.weights import LayerWeights, NormLinear
from qwen3_tts_engine.voice import Voice

SENTENCES = {
    "english": (
        "Thanks for calling, your order left the warehouse this morning.",
        "The train to the coast is running about ten minutes late today.",
        "Please leave your name and number, and we will call you back soon.",
        "It was raining when we came home, so we stayed inside and played.",
        "She opened the window, looked at the garden, and smiled.",
    ),
    "chinese": ("今天天气很好，我们下午一起去公园散步吧。",),
    "french": ("Le train pour la côte part dans dix minutes, dépêchez-vous.",),
    "german": ("Der Zug an die Küste fährt heute etwa zehn Minuten später.",),
    "italian": ("Questa mattina siamo andati al mercato a comprare il pane.",),
    "japanese": ("今日は天気がいいので、午後から公園に散歩に行きましょう。",),
    "korean": ("오늘은 날씨가 좋아서 오후에 공원에서 산책할 거예요.",),
    "portuguese": ("Hoje de manhã fomos ao mercado comprar pão e algumas frutas.",),
    "russian": ("Сегодня хорошая погода, и после обеда мы пойдём гулять в парк.",),
    "spanish": ("Esta mañana fuimos al mercado a comprar pan y algunas frutas.",),
}
# Heads are chosen from these; the other languages show whether they hold there.
MAIN_LANGUAGE = "english"
DESIGN = "A calm voice that speaks clearly."
MAX_FRAMES = 72
# Fewer frames with the whole text say nothing about a head.
MIN_FRAMES = 8
MAX_HEADS = 6
# Lowest score of a head, of the best one's and in all: random layers score 0.013, aligning heads of the demo voice 0.3
# to 0.8, its next best ones 0.14.
SHARE_OF_BEST, MIN_SCORE = 0.7, 0.3
# A step back by as much of a token is noise.
MONOTONE_STEP = -0.25
# A score that is nothing after the softmax.
LOWEST = -1e9
# Avoids the logarithm of zero.
FLOOR = 1e-7
# Relative frequencies of frames that move on by 1, 2 and 3 tokens, measured with the demo voice. How often a frame
# moves on at all is the checkpoint's rate.
STEPS = (0.7, 0.22, 0.08)


@dataclass(frozen=True)
class Spoken:
    """Attention to the text of one utterance, float32 [frames, layers, heads, tokens and the text's end]."""

    attention: np.ndarray
    first_whole: int
    """The first frame that sees the whole text."""

    @property
    def num_tokens(self) -> int:
        return self.attention.shape[-1] - 1


@dataclass(frozen=True)
class LayoutReport:
    """What was found for a text layout; `chosen` is None where no head follows the text."""

    layout: TextLayout
    best: float
    chosen: AlignmentHeads | None

    def __str__(self) -> str:
        if self.chosen is None:
            return f"{self.layout}: no word times: no head follows the text (score {self.best:.2f}, {MIN_SCORE} needed)"
        heads = " ".join(f"L{layer}H{head}" for layer, head in self.chosen.heads)
        scores = ", ".join(f"{language} {score:.2f}" for language, score in self.chosen.scores.items())
        return f"{self.layout}: {heads}; scores: {scores}"


def is_current(checkpoint: Checkpoint, folder: Path) -> bool:
    """Whether the heads of this checkpoint have been chosen."""
    try:
        return Alignment.read(folder, checkpoint) is not None
    except CheckpointError:
        return False


def choose_heads(
    checkpoint: Checkpoint, device: torch.device, voice: Voice | None = None
) -> tuple[Alignment, list[LayoutReport]]:
    """The heads of each layout. A Base checkpoint speaks in the `voice`."""
    recorder = AttentionRecorder()
    tensors = MovedTensors(load_tensors(checkpoint.path(WEIGHTS), talker_shapes(checkpoint.config)), device)
    talker = Talker(checkpoint.config.talker_config, tensors, recorder)
    predictor = CodePredictor(talker, tensors, recorder)
    requests = _requests(checkpoint, voice)
    streams = list[Stream]()
    for layout in LAYOUTS:
        prompts = PromptBuilder(checkpoint, EngineConfig(checkpoint=str(checkpoint.folder), text_layout=layout))
        streams += [prompts.stream(request, DiscardSink(), "alignment") for _, request in requests]
    # Layouts together: a tick costs the same for twice the rows.
    spoken = speak(_runner(checkpoint, talker, predictor, recorder, streams), recorder, streams)
    reports = []
    for layout in LAYOUTS:
        by_language: dict[str, list[Spoken]] = {}
        for (language, _), one in zip(requests, islice(spoken, len(requests)), strict=True):
            by_language.setdefault(language, []).append(one)
        reports.append(report(layout, by_language))
    chosen = {each.layout: each.chosen for each in reports if each.chosen}
    return Alignment(talker_digest=checkpoint.talker_digest, layouts=chosen), reports


def report(layout: TextLayout, spoken: Mapping[str, Sequence[Spoken]]) -> LayoutReport:
    main = next(iter(spoken))
    scores = mean_scores(spoken[main])
    heads, best = choose(scores), float(scores.max())
    if not heads:
        return LayoutReport(layout, best, None)
    by_language = {}
    for language, utterances in spoken.items():
        found = mean_scores(utterances)
        by_language[language] = round(float(np.mean([found[head] for head in heads])), 3)
    return LayoutReport(layout, best, AlignmentHeads(heads=heads, advance=advance(spoken[main]), scores=by_language))


def mean_scores(spoken: Sequence[Spoken]) -> np.ndarray:
    """The score of each head, 0 to 1, [layers, heads]: the product of the means of its parts over utterances."""
    parts = [head_parts(one) for one in spoken if len(one.attention) - one.first_whole >= MIN_FRAMES]
    if not parts:
        return np.zeros(spoken[0].attention.shape[1:3])
    correlation, monotone, sharp, span = np.mean(parts, axis=0)
    scores: np.ndarray = np.clip(correlation, 0, 1) * monotone * sharp * span
    return scores


def head_parts(spoken: Spoken) -> np.ndarray:
    """The parts of each head's score, [4, layers, heads]: correlation of the expected position with time, share of
    frames without a step back, 1 less the relative entropy, and share of the text that it passes."""
    weights = spoken.attention[spoken.first_whole :] + FLOOR
    weights /= weights.sum(-1, keepdims=True)
    frames, tokens = len(weights), spoken.num_tokens
    expected = (weights * np.arange(tokens + 1)).sum(-1)
    time, centred = np.arange(frames) - (frames - 1) / 2, expected - expected.mean(0)
    norm = np.sqrt((centred**2).sum(0) * (time**2).sum())
    correlation = (centred * time[:, None, None]).sum(0) / np.maximum(norm, FLOOR)
    monotone = (np.diff(expected, axis=0) >= MONOTONE_STEP).mean(0)
    sharp = 1 + (weights * np.log(weights)).sum(-1).mean(0) / np.log(tokens + 1)
    # Where speech is when the whole text is seen, at a constant rate.
    begun, edge = tokens * spoken.first_whole / len(spoken.attention), max(2, frames // 12)
    span = np.clip((expected[-edge:].mean(0) - expected[:edge].mean(0)) / (tokens - begun), 0, 1)
    return np.stack([correlation, monotone, sharp, span])


def choose(scores: np.ndarray) -> list[tuple[int, int]]:
    """The heads that follow the text, as layer and head, the best first."""
    best = scores.max()
    if best < MIN_SCORE:
        return []
    order = np.argsort(-scores, axis=None, kind="stable")[:MAX_HEADS]
    heads = [(int(layer), int(head)) for layer, head in zip(*np.unravel_index(order, scores.shape), strict=True)]
    return [head for head in heads if scores[head] >= SHARE_OF_BEST * best]


def advance(spoken: Sequence[Spoken]) -> list[float]:
    """AlignmentHeads.advance, from the mean number of tokens of a frame."""
    tokens = float(np.mean([one.num_tokens / len(one.attention) for one in spoken]))
    moves = min(tokens / sum(step * share for step, share in enumerate(STEPS, start=1)), 0.95)
    return [round(value, 4) for value in (1 - moves, *(moves * share for share in STEPS))]


class AttentionRecorder(TorchOps):
    """Records the attention of each frame to its text; multiplies all rows at once."""

    rows_at_once = GATHER_ROWS

    def __init__(self) -> None:
        self.texts = np.empty((0, 2), np.int64)
        """First position and number of tokens, the text's end included, of each slot."""
        self.ticks: list[tuple[np.ndarray, list[Tensor]]] = []
        """Slots [rows], and by layer their attention, float32 [rows, heads, tokens of the longest text]."""

    def norm_linear(
        self, x: Hidden, product: NormLinear, eps: float, bias: Tensor | None = None, out: Tensor | None = None
    ) -> Tensor:
        return super().norm_linear(_together(x), product, eps, bias, out)

    def norm_logits(self, x: Hidden, product: NormLinear, eps: float) -> Tensor:
        return super().norm_logits(_together(x), product, eps)

    def norm_gated(self, x: Hidden, gate_up: NormLinear, eps: float) -> Tensor:
        return super().norm_gated(_together(x), gate_up, eps)

    def add_linear(self, residual: Hidden, x: Tensor, weight: Tensor) -> None:
        super().add_linear(_together(residual), x, weight)

    def frame_attention(self, cache: FrameCache, start: int, count: int) -> Attention:
        attend = super().frame_attention(cache, start, count)
        return lambda layer, hidden, weights: attend(layer, _together(hidden), weights)

    def paged_attention(
        self,
        cache: PagedCache,
        slots: Tensor,
        positions: Tensor,
        *,
        prompts: int = 0,
        tracking: TorchTracking | None = None,
    ) -> Attention:
        attend = super().paged_attention(cache, slots, positions, prompts=prompts)
        cos, sin = cache.cos[positions], cache.sin[positions]
        # The last row of a prompt gives the first frame.
        rows = slice(-1, None) if prompts else slice(None)
        index, visible = self._text(cache, slots[rows], positions[rows])
        layers = list[Tensor]()
        self.ticks.append((slots[rows].cpu().numpy(), layers))

        def recorded(layer: int, hidden: Hidden, weights: LayerWeights) -> Tensor:
            out = attend(layer, _together(hidden), weights)
            qkv = norm_product(_together(hidden), weights.qkv, cache.config.rms_norm_eps)
            query, _, _ = split_heads(qkv, weights, cache.config, cos, sin)
            keys = cache.data[layer, 0][index].float()
            grouped = query[rows].float().unflatten(1, (keys.shape[2], -1))
            scores = torch.einsum("rkgd,rpkd->rkgp", grouped, keys).flatten(1, 2) / keys.shape[-1] ** 0.5
            seen = visible[:, None]
            # Finite, for rows that see no text yet.
            layers.append(scores.masked_fill(~seen, LOWEST).softmax(-1) * seen)
            return out

        return recorded

    def _text(self, cache: PagedCache, slots: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cache indices of each row's text, and whether the row sees them: [rows, tokens of the longest text]."""
        starts, counts = torch.from_numpy(self.texts).to(slots.device)[slots].unbind(1)
        offsets = torch.arange(int(self.texts[:, 1].max()), device=slots.device)
        at = torch.minimum(starts[:, None] + offsets, positions[:, None])
        visible = (offsets < counts[:, None]) & (starts[:, None] + offsets <= positions[:, None])
        return cache.index(slots[:, None], at), visible


def _together(hidden: Hidden) -> Hidden:
    return replace(hidden, together=True)


@torch.inference_mode()
def speak(runner: TalkerRunner, recorder: AttentionRecorder, streams: Sequence[Stream]) -> Iterator[Spoken]:
    """What each stream attended to, sampled with its seed."""
    pages = runner.limits.max_pages
    recorder.ticks.clear()
    recorder.texts = np.array([(stream.prompt.text_at, stream.prompt.num_spoken + 1) for stream in streams])
    newcomers = [
        Newcomer(stream, slot, list(range(slot * pages, (slot + 1) * pages))) for slot, stream in enumerate(streams)
    ]
    if failed := runner.prefill(newcomers):
        raise failed[0][1]
    active, counts = np.arange(len(streams)), np.zeros(len(streams), np.int64)
    for _ in range(MAX_FRAMES):
        frames = runner.collect(runner.launch(active))
        active = active[~frames.ended]
        counts[active] += 1
        if not len(active):
            break
    recorded: list[list[np.ndarray]] = [[] for _ in streams]
    for slots, layers in recorder.ticks:
        for slot, attention in zip(slots, torch.stack(layers, dim=1).cpu().numpy(), strict=True):
            recorded[slot].append(attention)
    for stream, attention, count in zip(streams, recorded, counts, strict=True):
        prompt = stream.prompt
        seen = np.array(attention[: max(1, count)])[..., : prompt.num_spoken + 1]
        yield Spoken(seen, max(0, prompt.text_at + prompt.num_spoken + 1 - len(prompt)))


def _requests(checkpoint: Checkpoint, voice: Voice | None) -> list[tuple[str, SynthesisRequest]]:
    """Language and request of each sentence, the main language first."""
    config, known = checkpoint.config, checkpoint.config.talker_config.codec_language_id
    languages = [language for language in SENTENCES if language in known] or [MAIN_LANGUAGE]
    speaker = min(config.talker_config.spk_id, default=None)
    by_type: dict[str, dict[str, Any]] = {
        "custom_voice": {"speaker": speaker},
        "voice_design": {"instruct": DESIGN},
        "base": {"voice": "reference", "cloned": voice},
    }
    fields = by_type[config.tts_model_type]
    return [
        (language, SynthesisRequest.of({"text": text, "language": language if known else AUTO, "seed": seed} | fields))
        for language in languages
        for seed, text in enumerate(SENTENCES[language])
    ]


def _runner(
    checkpoint: Checkpoint, talker: Talker, predictor: CodePredictor, ops: TorchOps, streams: Sequence[Stream]
) -> TalkerRunner:
    positions = max(len(stream.prompt) for stream in streams) + MAX_FRAMES
    trailing = max(len(stream.prompt.trailing) for stream in streams) + 1
    limits = RunnerLimits(len(streams), len(streams), positions, positions, trailing)
    return TalkerRunner(talker, predictor, limits, checkpoint.config.tts_pad_token_id, ops)
