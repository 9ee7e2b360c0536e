"""A tick of the text tracker in PyTorch, for the CPU and as the reference of its kernels."""

import torch
from torch import Tensor

from qwen3_tts_engine.core.batches import MILLION
from qwen3_tts_engine.core.streams import NONE
from qwen3_tts_engine.talker.kv_cache import PagedCache
from qwen3_tts_engine.talker.slot_state import SlotState
from qwen3_tts_engine.talker.text_tracker import BLOCK, FLOOR, TextTracker


class TorchTracking:
    """interface.Tracking. A row does not depend on the others.

    R of the tick's rows have word times; T are the tokens of the longest text, in whole blocks.
    """

    def __init__(
        self, tracker: TextTracker, state: SlotState, cache: PagedCache, slots: Tensor, positions: Tensor
    ) -> None:
        self._tracker, self._state, self._cache = tracker, state, cache
        layouts, starts, counts = state.text[slots].unbind(1)
        seen = torch.minimum(counts, positions + 1 - starts)
        self._rows = ((layouts > 0) & (seen > 0)).nonzero()[:, 0]
        self._slots, self._layouts, self._counts = (each[self._rows] for each in (slots, layouts, counts))
        longest = int(self._counts.max()) if len(self._rows) else 0
        self._tokens = torch.arange(-(-longest // BLOCK) * BLOCK, device=slots.device)
        seen, starts = seen[self._rows, None], starts[self._rows, None]
        self._is_seen = self._tokens < seen
        self._index = cache.index(self._slots[:, None], starts + torch.minimum(self._tokens, seen - 1))
        self._attention = torch.zeros(self._index.shape, device=slots.device)

    def observe(self, layer: int, query: Tensor) -> None:
        """Queries of a layer, normed and rotated, [rows, q heads, D]; their keys are stored."""
        for number, head in self._tracker.of_layer(layer):
            self.observe_head(number, query[:, head])

    def observe_head(self, number: int, query: Tensor) -> None:
        """Queries of one of the tracker's heads, [rows, D]."""
        layer, head = self._tracker.heads[number]
        config = self._cache.config
        keys = self._cache.data[layer, 0, :, head * config.num_key_value_heads // config.num_attention_heads]
        scores = (keys[self._index].float() * query[self._rows, None].float()).sum(-1) * config.head_dim**-0.5
        shares = self._tracker.shares[self._layouts, number]
        self._attention += shares[:, None] * scores.masked_fill_(~self._is_seen, -torch.inf).softmax(1)

    def finish(self) -> None:
        if not len(self._rows):
            return
        state, probability, count = self._state, self._tracker.probability, len(self._tokens)
        last, confidence = state.spoken[self._slots].unbind(1)
        # Until something is observed, the token with which a slot was opened is certain.
        before = torch.where(
            (confidence == NONE)[:, None], self._tokens == last[:, None], probability[self._slots, :count]
        )
        found = self._moved(before) * (self._attention + FLOOR / self._counts[:, None])
        found.masked_fill_(self._tokens >= self._counts[:, None], 0)
        found /= found.sum(1, keepdim=True)
        probability[self._slots] = 0
        probability[self._slots, :count] = found
        token = torch.maximum(last, found.argmax(1))
        is_near = (self._tokens - token[:, None]).abs() <= 1
        near = self._attention.masked_fill(~is_near, 0).sum(1)
        state.spoken[self._slots] = torch.stack([token, (near * MILLION).long()], dim=1)

    def _moved(self, probability: Tensor) -> Tensor:
        """The probability of each token, float32 [R, T], before the frame is observed."""
        moves = self._tracker.moves[self._layouts, :, None]
        moved = moves[:, 0] * probability
        for step in range(1, moves.shape[1]):
            moved[:, step:] += moves[:, step] * probability[:, :-step]
        return moved
