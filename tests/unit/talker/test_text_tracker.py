"""The text tracker of PyTorch against a filter in NumPy, and its kernels, in Triton's interpreter, against PyTorch."""

from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qwen3_tts_engine.checkpoint.alignment import LAYOUTS, Alignment, AlignmentHeads
from qwen3_tts_engine.core.batches import MILLION
from qwen3_tts_engine.core.streams import NONE
from qwen3_tts_engine.talker.kv_cache import PagedCache
from qwen3_tts_engine.talker.ops.interface import Hidden, Tracking
from qwen3_tts_engine.talker.ops.torch_ops import TorchOps, norm_product, split_heads
from qwen3_tts_engine.talker.ops.torch_tracking import TorchTracking
from qwen3_tts_engine.talker.side_stream import SideStream
from qwen3_tts_engine.talker.text_tracker import FLOOR, TextTracker
from qwen3_tts_engine.talker.weights import LayerWeights, NormLinear
from tests.fakes.one_stream import OneStream
from tests.unit.talker.attention_case import layer, transformer_config

CPU = torch.device("cpu")
HEADS, KEY_HEADS, SIZE, PAGE, MAX_TOKENS, TICKS = 4, 2, 64, 5, 90, 12
ADVANCE = {"full": [0.5, 0.3, 0.15, 0.05], "streaming": [0.7, 0.3]}
CHOSEN = {"full": [(1, 2), (0, 3)], "streaming": [(0, 0), (1, 2), (1, 1)]}
ALIGNMENT = Alignment(
    talker_digest="",
    layouts={
        name: AlignmentHeads(heads=CHOSEN[name], advance=ADVANCE[name], scores={"english": 1.0}) for name in LAYOUTS
    },
)
# Layout, first position of the text, tokens and its end; position of the first frame that is observed.
TEXTS = {
    "the whole text is in the prompt": (1, 9, 20, 31),
    "more tokens than a block": (1, 7, 80, 90),
    "tokens are fed one by one": (2, 9, 30, 10),
    "no word times": (0, 0, 0, 40),
    "the text begins after three frames": (2, 16, 7, 13),
    "one token": (1, 9, 2, 12),
}


@dataclass
class Case:
    """Slots with texts of all kinds, and layers whose heads are observed."""

    device: torch.device = CPU

    def __post_init__(self) -> None:
        torch.manual_seed(3)
        self.tracker = TextTracker(ALIGNMENT, len(TEXTS), MAX_TOKENS, self.device)
        config = transformer_config(HEADS, KEY_HEADS, SIZE)
        pages = 128 // PAGE + 1
        table = torch.randperm(len(TEXTS) * pages).reshape(len(TEXTS), pages).to(self.device)
        self.cache = PagedCache(config, len(TEXTS) * pages, PAGE, table, torch.float32)
        self.cache.data.copy_(torch.randn(self.cache.data.shape))
        self.layers = [moved(layer(config), self.device) for _ in range(2)]
        fields = torch.tensor([[*text, 0, NONE] for text in TEXTS.values()])
        frames = torch.zeros(len(TEXTS), 1, dtype=torch.int64)
        # Columns of one matrix, as in SlotState.
        self.fields = torch.cat([frames, fields], dim=1).to(self.device)
        self.state: Any = SimpleNamespace(text=self.fields[:, 1:4], spoken=self.fields[:, 5:7], frame=self.fields[:, 0])
        self.slots, self.positions = torch.arange(len(TEXTS), device=self.device).flip(0), self.fields[:, 4].flip(0)
        # Sharp attention, as of heads that follow the text.
        self.hidden = [6 * torch.randn(len(TEXTS), config.hidden_size).to(self.device) for _ in range(TICKS)]

    def run(self, make: Any, observe: Any) -> list[Tensor]:
        """SlotState.spoken after each tick."""
        found = []
        for tick in range(TICKS):
            positions = self.positions + tick
            tracking: Tracking = make(self.tracker, self.state, self.cache, self.slots, positions)
            for number, weights in enumerate(self.layers):
                observe(tracking, number, weights, Hidden(self.hidden[tick]), positions)
            tracking.finish()
            found.append(self.state.spoken.clone())
        return found

    def queries(self, weights: Any, hidden: Hidden, positions: Tensor) -> Tensor:
        cos, sin = self.cache.cos[positions], self.cache.sin[positions]
        return split_heads(norm_product(hidden, weights.qkv, 1e-6), weights, self.cache.config, cos, sin)[0]


def moved(weights: LayerWeights, device: torch.device) -> LayerWeights:
    qkv, norm = weights.qkv, weights.qkv.norm
    assert norm is not None
    qkv = NormLinear(norm.to(device), qkv.weight.to(device))
    return replace(weights, qkv=qkv, q_norm=weights.q_norm.to(device), k_norm=weights.k_norm.to(device))


def observe_queries(case: Case) -> Any:
    return lambda tracking, number, weights, hidden, positions: tracking.observe(
        number, case.queries(weights, hidden, positions)
    )


def filtered(case: Case, slot: int) -> list[tuple[int, float]]:
    """Token and confidence of a slot after each tick, in float64, from the definition."""
    layout, start, count, position = case.fields[slot, 1:5].tolist()
    found, token, row = list[tuple[int, float]](), 0, int((case.slots == slot).nonzero())
    probability = np.eye(1, count)[0] if count else np.zeros(0)
    for tick in range(TICKS):
        seen = min(count, position + tick + 1 - start)
        if not layout or seen <= 0:
            found.append((0, NONE / MILLION))
            continue
        name, attention = LAYOUTS[layout - 1], np.zeros(count)
        index = case.cache.index(slot, torch.arange(start, start + seen))
        for number, head in CHOSEN[name]:
            queries = case.queries(case.layers[number], Hidden(case.hidden[tick]), case.positions + tick)
            keys = case.cache.data[number, 0][index, head // 2].double().numpy()
            scores = keys @ queries[row, head].double().numpy() / SIZE**0.5
            attention[:seen] += np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        attention /= len(CHOSEN[name])
        moved = sum(
            share * np.concatenate([np.zeros(step), probability[: count - step]])
            for step, share in enumerate(ADVANCE[name]) if step < count
        )  # fmt: skip
        probability = moved * (attention + FLOOR / count)
        probability /= probability.sum()
        token = max(token, int(probability.argmax()))
        found.append((token, attention[max(0, token - 1) : token + 2].sum()))
    return found


@pytest.mark.parametrize("text", TEXTS)
def test_the_position_is_that_of_a_forward_filter(text: str) -> None:
    case, slot = Case(), list(TEXTS).index(text)
    found = case.run(TorchTracking, observe_queries(case))
    expected = filtered(Case(), slot)
    assert [int(spoken[slot, 0]) for spoken in found] == [token for token, _ in expected]
    for spoken, (_, confidence) in zip(found, expected, strict=True):
        assert int(spoken[slot, 1]) == pytest.approx(confidence * MILLION, abs=20)
    if text in ("the whole text is in the prompt", "more tokens than a block", "tokens are fed one by one"):
        assert found[-1][slot, 0] > 2, "it moves"


def test_attention_that_is_bound_to_it_observes_the_rows_that_it_computes() -> None:
    """Also a row's own key, which is that of a text token in the streaming layout."""
    case, expected = Case(), Case()
    hidden, positions, slots = Hidden(case.hidden[0]), case.positions, case.slots
    tracking = TorchTracking(case.tracker, case.state, case.cache, slots, positions)
    attend = TorchOps().paged_attention(case.cache, slots, positions, tracking=tracking)
    for number, weights in enumerate(case.layers):
        attend(number, hidden, weights)
    tracking.finish()
    expected.cache.data.copy_(case.cache.data)
    again = TorchTracking(expected.tracker, expected.state, expected.cache, slots, positions)
    for number, weights in enumerate(expected.layers):
        observe_queries(expected)(again, number, weights, hidden, positions)
    again.finish()
    torch.testing.assert_close(case.state.spoken, expected.state.spoken)
    assert (case.state.spoken[:, 1] > 0).sum() == 4


@pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the compiled kernels")
def test_kernels_compute_what_pytorch_does() -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    check_kernels(CPU, OneStream())


def check_kernels(device: torch.device, beside: SideStream) -> None:
    from qwen3_tts_engine.talker.ops.kernel_ops import KernelTracking

    case, expected = Case(device), Case(device)
    # Of a slot's previous stream.
    case.tracker.probability.fill_(0.3)

    def observe(tracking: KernelTracking, number: int, weights: Any, hidden: Hidden, _: Tensor) -> None:
        qkv = norm_product(hidden, weights.qkv, 1e-6)
        # Products of prompts follow the frames' rows, and rows have a stride.
        wide = torch.cat([torch.cat([qkv, qkv]), qkv.new_zeros(2 * len(qkv), 3)], dim=1)
        tracking.observe(number, wide[:, : qkv.shape[1]], weights)

    found = case.run(partial(KernelTracking, beside=beside), observe)
    wanted = expected.run(TorchTracking, observe_queries(expected))
    for spoken, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(spoken[:, 0], right[:, 0])
        torch.testing.assert_close(spoken[:, 1], right[:, 1], atol=20, rtol=0)
    tracked = [slot for slot, (layout, *_) in enumerate(TEXTS.values()) if layout]
    torch.testing.assert_close(case.tracker.probability[tracked], expected.tracker.probability[tracked])
    assert (case.tracker.probability[list(TEXTS).index("no word times")] == 0.3).all()


def test_a_slot_that_is_opened_again_continues_at_its_token() -> None:
    """As a stream that was parked: without what the filter had before."""
    case = Case()
    case.run(TorchTracking, observe_queries(case))
    slot = list(TEXTS).index("more tokens than a block")
    case.state.spoken[slot] = torch.tensor([40, NONE])
    tracking = TorchTracking(case.tracker, case.state, case.cache, case.slots, case.positions)
    tracking.finish()
    assert case.state.spoken[slot, 0] == 40
    probability = case.tracker.probability[slot]
    np.testing.assert_allclose(probability[40:44], ADVANCE["full"], rtol=1e-5)
    assert probability.sum() == pytest.approx(1)


def test_a_layout_without_heads_has_no_share() -> None:
    only_full = replace_layouts(full=ALIGNMENT.layouts["full"])
    tracker = TextTracker(only_full, 2, MAX_TOKENS, CPU)
    assert tracker.heads == sorted(CHOSEN["full"])
    assert tracker.shares[1].tolist() == [0.5, 0.5]
    assert not tracker.shares[2].any()
    assert not tracker.moves[2].any()


def replace_layouts(**layouts: AlignmentHeads) -> Alignment:
    return ALIGNMENT.model_copy(update={"layouts": layouts})
