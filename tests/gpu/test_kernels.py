"""Each kernel agrees with its PyTorch operation, computed in float32 from the same bfloat16 inputs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from qwen3_tts_engine.checkpoint.checkpoint import WEIGHTS, Checkpoint, load_tensors
from qwen3_tts_engine.checkpoint.configs import TalkerConfig, TransformerConfig
from qwen3_tts_engine.checkpoint.tensor_shapes import talker_shapes
from qwen3_tts_engine.core.batches import Newcomer
from qwen3_tts_engine.interfaces import RunnerLimits
from qwen3_tts_engine.talker.kernels.kernel_path import kernel_path
from qwen3_tts_engine.talker.kv_cache import FrameCache, PagedCache
from qwen3_tts_engine.talker.ops.interface import Hidden
from qwen3_tts_engine.talker.ops.torch_ops import TorchOps, TorchRows
from qwen3_tts_engine.talker.side_stream import SideStream
from qwen3_tts_engine.talker.slot_state import SlotState
from qwen3_tts_engine.talker.talker import Talker
from qwen3_tts_engine.talker.weights import LayerWeights, NormLinear
from scripts.synthetic.configs import model_config
from tests.fakes.scripted import Listener, make_stream
from tests.gpu.conftest import DEVICE, KERNEL_PATH
from tests.unit.talker.test_text_tracker import check_kernels

EPS = 1e-6
BF16 = torch.bfloat16
LIMITS = RunnerLimits(num_slots=4, num_pages=12, page_size=8, max_positions=96, max_trailing=8)
# (outputs, inputs) of the matrix products of both released sizes.
LARGE = [(4096, 2048), (2048, 2048), (2048, 6144), (3072, 2048)]
PRODUCTS = [*LARGE, (4096, 1024), (1024, 2048), (1024, 3072), (2048, 1024), (256, 128), (64, 256)]
ROWS = [1, 2, 5, 8, 9, 16, 17, 24, 32, 33, 64, 100, 250, 300, 400]


@pytest.fixture(scope="module")
def ops() -> Any:
    from qwen3_tts_engine.talker.ops.kernel_ops import KernelOps

    return KernelOps(DEVICE, kernel_path(torch.cuda.get_device_capability(DEVICE), KERNEL_PATH))


@pytest.fixture(scope="module")
def talker(tiny_checkpoint: Path) -> Talker:
    checkpoint = Checkpoint.open(str(tiny_checkpoint))
    tensors = load_tensors(checkpoint.path(WEIGHTS), talker_shapes(checkpoint.config))
    return Talker(checkpoint.config.talker_config, {k: v.to(DEVICE, BF16) for k, v in tensors.items()}, TorchOps())


def real_config() -> TalkerConfig:
    ids = {f"{name}_token_id": 0 for name in ("im_start", "im_end", "assistant", "tts_pad", "tts_bos", "tts_eos")}
    return TalkerConfig.model_validate(model_config("1.7b", "custom_voice", ids)["talker_config"])


def random(*shape: int, scale: float = 1.0) -> Tensor:
    return (torch.randn(*shape, device=DEVICE) * scale).to(BF16)


def close(found: Tensor, expected: Tensor, tolerance: float = 8e-3) -> None:
    """Asserts equality up to bfloat16 rounding, relative to the norm."""
    assert torch.isfinite(found.float()).all()
    error = (found.float() - expected.float()).norm() / expected.float().norm().clamp(min=1e-6)
    assert float(error) < tolerance


@pytest.mark.parametrize(("outputs", "inputs"), PRODUCTS)
@pytest.mark.parametrize("rows", ROWS)
def test_matrix_products_agree_with_pytorch(
    ops: Any, device: torch.device, rows: int, outputs: int, inputs: int
) -> None:
    x, weight, norm = random(rows, 2, inputs)[:, 1], random(outputs, inputs, scale=0.02), random(inputs)
    wide, product = TorchOps(), ops.fold(norm, weight)
    inputs32 = (Hidden(x.float()), wide.fold(norm.float(), weight.float()), EPS)
    bias = random(outputs)
    out = torch.full((rows, 2, outputs), 7.0, device=device, dtype=BF16)
    ops.norm_linear(Hidden(x), product, EPS, bias, out[:, 0])
    close(out[:, 0], wide.norm_linear(*inputs32, bias.float()))
    assert (out[:, 1] == 7).all(), "wrote outside its rows"
    close(ops.norm_linear(Hidden(x), product, EPS), wide.norm_linear(*inputs32))
    for hidden in (Hidden(x), Hidden(x, squares_of(x))):
        logits = ops.norm_logits(hidden, product, EPS)
        assert logits.dtype == torch.float32
        close(logits, wide.norm_logits(*inputs32))
        close(ops.norm_gated(hidden, product, EPS), wide.norm_gated(*inputs32), 1.2e-2)
    residual = Hidden(random(rows, outputs))
    expected = residual.rows.float() + x.float() @ weight.float().T
    ops.add_linear(residual, x, weight)
    close(residual.rows, expected)
    if residual.squares is not None:
        torch.testing.assert_close(residual.squares.sum(0), residual.rows.float().square().sum(1))


def squares_of(x: Tensor) -> Tensor:
    """Squares as Hidden has them: in two parts, every second row of a larger tensor."""
    squares: Tensor = x.float().square().unflatten(1, (2, -1)).sum(2).T
    return squares.repeat_interleave(2, dim=1)[:, 1::2]


@pytest.mark.parametrize(
    ("rows", "outputs", "inputs"),
    [
        (17, 4096, 2048),
        (40, 2048, 6144),
        (64, 12288, 2048),
        (64, 2048, 1024),
        (100, 4096, 1024),
        (180, 6144, 1024),
        (250, 1024, 3072),
        (250, 12288, 2048),
        (500, 2048, 6144),
    ],
)
def test_products_in_a_graph_give_equal_bits_every_time(
    ops: Any, device: torch.device, rows: int, outputs: int, inputs: int
) -> None:
    """Each launch starts before the previous one ends, as in a tick."""
    products = [ops.fold(random(inputs), random(outputs, inputs, scale=0.02)) for _ in range(3)]
    x, residual = random(rows, inputs), random(rows, outputs)

    def run() -> list[Tensor]:
        found = Hidden(residual.clone())
        values = [ops.norm_gated(Hidden(x), product, EPS) for product in products]
        for product in products:
            ops.add_linear(found, x, product.weight)
        return [*values, found.rows, *([] if found.squares is None else [found.squares])]

    expected = run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = [run() for _ in range(4)]
    different = torch.zeros((), device=device, dtype=torch.int64)
    for _ in range(100):
        graph.replay()
        for values in found:
            for value, one in zip(values, expected, strict=True):
                different += (value != one).any()
    assert not int(different)


@pytest.mark.parametrize("width", [64, 1024, 2048])
def test_norm_and_embedding_agree_with_pytorch(ops: Any, device: torch.device, width: int) -> None:
    x, norm = random(3, 2, width)[:, 0], random(width)
    close(ops.rms_norm(x, norm, EPS), TorchOps().rms_norm(x.float(), norm.float(), EPS))
    table = torch.cat([random(10, width), torch.zeros(1, width, device=device, dtype=BF16)])
    indices = torch.tensor([[0, 3, -1], [-1, -1, -1], [9, 9, 1]], device=device)
    close(ops.embed(table, indices), TorchOps().embed(table.float(), indices))


@pytest.mark.parametrize("config", [real_config(), None], ids=["real", "tiny"])
@pytest.mark.parametrize("lengths", [[1, 5, 9], [64, 70, 3], [31, 32, 33], [300, 129, 700], [*range(1, 71), 5]])
def test_paged_attention_agrees_in_prefill_and_decode(
    ops: Any, device: torch.device, talker: Talker, config: TalkerConfig | None, lengths: list[int]
) -> None:
    """A prefill of all slots, two ticks, a prompt beside frames, and two more prefills; pages in random order."""
    config = config or talker.config
    layers = layers_of(ops, config)
    count, pages = len(lengths), max(lengths) // 8 + 8
    table = torch.randperm(count * pages, device=device).reshape(count, pages)
    caches = [PagedCache(config, count * pages, 8, table, dtype) for dtype in (BF16, torch.float32)]
    slots = torch.cat([torch.full((n,), i, device=device) for i, n in enumerate(lengths)])
    positions = torch.cat([torch.arange(n, device=device) for n in lengths])
    order = torch.randperm(count, device=device)
    ticks = [(slots, positions, len(slots))]
    ticks += [(order, torch.tensor(lengths, device=device)[order] + tick, 0) for tick in range(2)]
    prompt = torch.arange(lengths[2], device=device)
    beside = torch.tensor([lengths[0] + 2, lengths[1] + 2], device=device)
    joint = torch.tensor([0, 1], device=device), torch.full_like(prompt, 2)
    ticks.append((torch.cat(joint), torch.cat([beside, prompt]), len(prompt)))
    # Rows of prompts whose beginnings are cached, beside a frame and alone.
    for rows in (3, 45):
        later = torch.cat([torch.arange(n + 4, n + 4 + rows, device=device) for n in lengths])
        later_slots = torch.arange(count, device=device).repeat_interleave(rows)
        ticks.append((later_slots[rows - 1 :], later[rows - 1 :], (count - 1) * rows))
        ticks.append((later_slots, later, count * rows))
    for slots, positions, prompts in ticks:
        hidden = random(len(slots), config.hidden_size, scale=30.0)
        found = ops.paged_attention(caches[0], slots, positions, prompts=prompts)(1, Hidden(hidden), layers[0])
        wide = TorchOps().paged_attention(caches[1], slots, positions, prompts=prompts)
        close(found, wide(1, Hidden(hidden.float()), layers[1]), 1.2e-2)
    close(caches[0].data, caches[1].data)


@pytest.mark.parametrize("config", [real_config(), None], ids=["real", "tiny"])
@pytest.mark.parametrize("rows", [1, 3, 40, 90, 230])
def test_frame_attention_agrees_over_a_whole_frame(
    ops: Any, device: torch.device, talker: Talker, config: TalkerConfig | None, rows: int
) -> None:
    predictor = (config or talker.config).code_predictor_config
    layers = layers_of(ops, predictor)
    caches = [FrameCache(predictor, rows + 1, 16, dtype, device) for dtype in (BF16, torch.float32)]
    for start, count in [(0, 2), *((position, 1) for position in range(2, 16))]:
        hidden = random(rows * count, predictor.hidden_size, scale=30.0)
        found = ops.frame_attention(caches[0], start, count)(1, Hidden(hidden), layers[0])
        close(found, TorchOps().frame_attention(caches[1], start, count)(1, Hidden(hidden.float()), layers[1]), 1.2e-2)
    assert not caches[0].data[:, :, rows].any(), "wrote outside its rows"


def layers_of(ops: Any, config: TransformerConfig) -> tuple[LayerWeights, LayerWeights]:
    """Random weights of attention for the kernels and, in float32, for their reference."""
    norm, norms = random(config.hidden_size), random(2, config.head_dim)
    qkv = random(config.query_size + 2 * config.key_value_size, config.hidden_size, scale=0.05)
    return layer(ops.fold(norm, qkv), norms), layer(TorchOps().fold(norm.float(), qkv.float()), norms.float())


def layer(qkv: NormLinear, norms: Tensor) -> LayerWeights:
    none = torch.empty(0)
    unused = NormLinear(None, none)
    return LayerWeights(qkv, norms[0], norms[1], none, unused, none)


def slot_state(talker: Talker, **sampling: float) -> SlotState:
    """Three streams with seeds 3, 4, 5 and two text tokens to feed, in slots 2, 0, 1."""
    state = SlotState(talker, LIMITS)
    newcomers = []
    for number, slot in enumerate((2, 0, 1)):
        stream = make_stream(str(number), Listener(), seed=3 + number)
        stream.sampling = stream.sampling.model_copy(update=sampling)
        stream.prompt.trailing.extend([5, 6])
        newcomers.append(Newcomer(stream, slot, [slot]))
    state.open(newcomers)
    return state


def test_the_text_tracker_agrees_with_pytorch() -> None:
    check_kernels(DEVICE, SideStream(DEVICE))


SAMPLING = [
    {"temperature": 0.0, "predictor_temperature": 0.0},
    {"temperature": 0.9, "top_k": 50, "repetition_penalty": 1.3, "predictor_temperature": 0.9, "predictor_top_k": 50},
    {"temperature": 1.2, "top_k": 0, "top_p": 0.7, "predictor_temperature": 0.7, "predictor_top_p": 0.5},
    {"temperature": 0.7, "top_k": 1, "predictor_temperature": 1.0, "predictor_top_k": 3000},
]


@pytest.mark.parametrize("sampling", SAMPLING)
def test_drawing_and_feeding_back_a_frame_agree_with_pytorch(
    ops: Any, device: torch.device, talker: Talker, sampling: dict[str, float]
) -> None:
    """Greedy codes are equal; for equal codes, inputs and state of the next frame agree with PyTorch."""
    kernel_state, torch_state = slot_state(talker, **sampling), slot_state(talker, **sampling)
    slots = torch.tensor([0, 2, 1], device=device)
    inputs = random(3072 + 15 * 2048 + 1, 64)
    for _ in range(4):
        rows, expected = ops.rows(kernel_state, slots), TorchRows(torch_state, slots)
        out = torch.empty(3, 64, device=device, dtype=BF16)
        for codebook in range(16):
            logits = torch.randn(3, 2048 if codebook else 3072, device=device) * 5
            table = inputs[3072 + (codebook - 1) * 2048 :] if codebook else inputs
            for one, target in ((rows, out), (expected, out.clone())):
                one.draw(codebook, logits, table, target) if codebook else one.draw_first(logits, table, target)
            assert torch.equal(out, table[rows.codes[:, codebook]])
        if sampling["temperature"] == 0:
            assert torch.equal(rows.codes, expected.codes)
        expected.codes.copy_(rows.codes)
        torch_state.seen.copy_(kernel_state.seen)
        for one in (rows, expected):
            one.advance(talker.text_table, talker.code_table, 7)
        close(kernel_state.input[slots], torch_state.input[slots])
        for name in ("frame", "position", "seen"):
            assert torch.equal(getattr(kernel_state, name), getattr(torch_state, name)), name


def test_padding_rows_do_not_advance(ops: Any, device: torch.device, talker: Talker) -> None:
    state = slot_state(talker)
    position = state.position.clone()
    rows = ops.rows(state, torch.tensor([state.padding_slot, 0, state.padding_slot], device=device))
    rows.codes.zero_()
    rows.advance(talker.text_table, talker.code_table, 7)
    position[0] += 1
    assert torch.equal(state.position, position)
    assert state.frame.tolist() == [1] + [0] * (len(position) - 1)


@pytest.mark.parametrize("vocabulary", [3072, 2048, 1280, 256])
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(0.9, 50, 1.0), (1.3, 5, 0.8), (0.7, 0, 0.9), (1.0, 1, 1.0), (1.0, 0, 1.0)]
)
def test_drawn_codes_follow_the_distribution(
    ops: Any, device: torch.device, talker: Talker, vocabulary: int, temperature: float, top_k: int, top_p: float
) -> None:
    """Codes drawn with many seeds have the frequencies of the reference distribution; 3072 logits are codebook 0's."""
    draws, first = 20000, vocabulary == 3072
    state = SlotState(talker, RunnerLimits(draws, num_pages=1, page_size=8, max_positions=8, max_trailing=1))
    chosen = [temperature, top_k, top_p]
    state.options[:] = torch.from_numpy(np.array([*chosen, 1.2, *chosen], np.float64))
    state.seed[:] = torch.arange(draws + 1, device=device) * 7919
    state.frame[:] = 5
    state.seen[:, ::3] = True
    logits = torch.randn(vocabulary, device=device) * 4
    logits[2150:2151] = 9.0
    rows = ops.rows(state, torch.arange(draws, device=device))
    table, out = random(3072, 64), torch.empty(draws, 64, device=device, dtype=BF16)
    many = logits.expand(draws, -1).contiguous()
    expected = logits.clone()
    if first:
        rows.draw_first(many, table, out)
        expected[:2048:3] = torch.where(logits > 0, logits / 1.2, logits * 1.2)[:2048:3]
        expected[2048:2150], expected[2151:] = -torch.inf, -torch.inf
    else:
        rows.draw(3, many, table, out)
    probability = reference_distribution(expected, temperature, top_k, top_p)
    found = torch.bincount(rows.codes[:, 0 if first else 3], minlength=len(logits)) / draws
    assert not found[probability == 0].any()
    deviation = 4.5 * (probability * (1 - probability) / draws).sqrt() + 1.5 / draws
    assert ((found - probability).abs() <= deviation).all()


def reference_distribution(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    values, ids = (logits / temperature).sort(descending=True)
    if top_k:
        values[top_k:] = -torch.inf
    probability = values.softmax(0)
    probability[probability.cumsum(0) - probability >= top_p] = 0
    return torch.zeros_like(logits).scatter(0, ids, probability / probability.sum())
