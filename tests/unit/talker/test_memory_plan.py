"""How many streams fit into a GPU."""

import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from code2wav_step.buckets import row_frames
from code2wav_step.config import Contract
from code2wav_step.rows import HostRows
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import ModelConfig, SpeechTokenizerConfig
from qwen3_tts_engine.checkpoint.manifest import CODEC_CONTRACT, CodecManifest, EncoderManifest
from qwen3_tts_engine.codec.contract import PUBLIC_ROWS, RowCounts, plan_rows, state_size, terms
from qwen3_tts_engine.config import ConfigError, EngineConfig
from qwen3_tts_engine.talker.graph_runner import count_graphs
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.talker.memory_plan import (
    CODEC_ENCODER_BYTES,
    CONTEXT_BYTES,
    GIB,
    STREAMS,
    GpuMemory,
    MemoryNeeds,
    MemoryPlan,
    codec_model,
    codec_row_frames,
    encoder_model,
    weight_bytes,
)
from scripts.synthetic.configs import ModelType, Size, model_config, speech_tokenizer_config
from scripts.synthetic.tokenizer import text_tokenizer
from tests.conftest import CheckpointOf
from tests.unit.talker.test_graph_rows import CapturedRows, as_graph_runner

DECODER = SpeechTokenizerConfig.model_validate(speech_tokenizer_config("1.7b")).decoder_config
MANIFEST = {"opset": None, "torch": "2", "onnx": "1", "commit": None}
CODEC = CodecManifest.model_validate(
    MANIFEST
    | {"form": "python", "state_size": state_size(DECODER), "state_dtype": "FP16", "codec_digest": "any"}
    | {"chunk_frames": [1, 2, 4, 8, 16], "sample_rate": 24000, "contract": CODEC_CONTRACT}
)
CPU = torch.device("cpu")
# Cards in GiB: the total, and the rest beside the contexts of a desktop or a server.
CARDS = ((6, 5.2), (8, 7.2), (12, 11), (16, 15), (24, 22.7), (48, 46), (80, 78), (141, 139))


def model_of(size: Size, model_type: ModelType = "custom_voice") -> ModelConfig:
    return ModelConfig.model_validate(model_config(size, model_type, text_tokenizer(size).ids_for_config()))


def needs(size: Size, model_type: ModelType = "custom_voice", **settings: Any) -> MemoryNeeds:
    config = EngineConfig.model_validate({"checkpoint": "any", **settings})
    return MemoryNeeds(model_of(size, model_type), config, 2 * state_size(DECODER))


def memory(total: float, free: float) -> GpuMemory:
    """Before code2wav is loaded."""
    codec = codec_model("code2wav", CODEC, DECODER, int(total * GIB))
    return GpuMemory(int(free * GIB), int(total * GIB), awaited=codec.size)


def chosen(size: Size, total: float, free: float, **settings: Any) -> MemoryPlan | None:
    return needs(size, **settings).fitting(memory(total, free))


@pytest.mark.parametrize("size", ["0.6b", "1.7b"])
def test_more_memory_gives_more_streams_and_all_of_it_fits(size: Size) -> None:
    plans = [chosen(size, *card) for card in CARDS]
    streams = [plan.streams if plan else 0 for plan in plans]
    assert streams == sorted(streams)
    assert set(streams) <= {0, *STREAMS}
    for plan, (_, free) in zip(plans, CARDS, strict=True):
        assert plan is None or plan.total <= free * GIB
        assert plan is None or plan.positions >= max(plan.streams * 512, 6160)


@pytest.mark.parametrize(
    ("size", "total", "free", "least"), [("0.6b", 6, 5.2, 8), ("1.7b", 8, 7.2, 8), ("1.7b", 24, 22, 64)]
)
def test_small_cards_serve_several_streams(size: Size, total: float, free: float, least: int) -> None:
    plan = chosen(size, total, free)
    assert plan is not None
    assert plan.streams >= least


def test_an_h200_serves_256_streams_of_512_positions() -> None:
    for size in ("0.6b", "1.7b"):
        plan = chosen(size, 141, 139)
        assert plan is not None
        assert (plan.streams, plan.positions, plan.cache) == (256, 256 * 512, 14 * GIB)


def test_a_number_that_does_not_fit_is_refused_with_the_one_that_does() -> None:
    card = memory(8, 7.2)
    most = needs("1.7b", max_streams=64)
    with pytest.raises(
        ConfigError, match=r"^max_streams: \d+\.\d GiB are required for 64 streams, 7\.2 are free: at"
    ) as e:
        most.choose(card)
    [count] = re.findall(r"at most (\d+), or set a smaller kv_cache_gib", str(e.value))
    assert most.plan(int(count), card.awaited).total <= card.free < most.plan(int(count) + 1, card.awaited).total
    assert needs("1.7b", max_streams=int(count)).choose(card).streams == int(count)
    with pytest.raises(
        ConfigError, match=r"required for 1 stream, 5\.2 are free: lower max_frames_limit, or free memory"
    ):
        needs("1.7b").choose(memory(6, 5.2))
    with pytest.raises(ConfigError, match="lower kv_cache_gib, or free memory"):
        needs("1.7b", kv_cache_gib=4.0).choose(card)


def test_a_given_cache_replaces_the_automatic_one() -> None:
    plan = needs("1.7b", max_streams=64, kv_cache_gib=0.7).choose(memory(8, 7.2))
    assert (plan.streams, plan.positions) == (64, 6552)


def test_a_share_limits_a_server_with_its_codec() -> None:
    card, half = memory(24, 22.7), needs("1.7b", gpu_memory_share=0.5)
    plan = half.choose(card)
    assert plan.total <= 12 * GIB - CONTEXT_BYTES
    assert plan.streams < needs("1.7b").choose(card).streams
    # Memory that the codec has taken counts as well.
    loaded = GpuMemory(card.free - card.awaited, card.total, taken=card.awaited)
    assert half.choose(loaded).streams == plan.streams
    with pytest.raises(
        ConfigError, match=r"are the share of this server \(gpu_memory_share\): .* raise gpu_memory_share"
    ):
        needs("1.7b", gpu_memory_share=0.2).choose(card)


def test_the_line_of_the_log_names_all_parts() -> None:
    plan = chosen("1.7b", 8, 7.2)
    line = r"weights 3\.6, cache 1\.3 \(24 streams, 12288 positions\), states 0\.1, graphs 0\.2, other models 1\.\d, "
    assert re.fullmatch(line + r"reserve 0\.3", str(plan))


@pytest.mark.parametrize("model_type", ["custom_voice", "base"])
def test_weights_are_those_of_a_loaded_runner(model_type: ModelType, checkpoint_of: CheckpointOf) -> None:
    """The tiny checkpoint's code predictor is narrower than its talker, the Base one's is not."""
    checkpoint = Checkpoint.open(str(checkpoint_of(model_type)))
    sizes = {"max_streams": 1, "max_text_tokens": 8, "max_frames_limit": 8, "talker_proof_seconds": 0}
    config = EngineConfig.model_validate({"checkpoint": str(checkpoint.folder), **sizes})
    runner = load_runner(checkpoint, config, CPU)
    loaded = sum(storages([runner._talker, runner._predictor], {}).values())
    assert loaded == weight_bytes(checkpoint.config, torch.float32.itemsize)


def storages(part: Any, found: dict[int, int]) -> dict[int, int]:
    """Bytes of the floating-point tensors that `part` holds, by their address."""
    if isinstance(part, Tensor):
        if part.is_floating_point():
            found[part.data_ptr()] = part.nbytes
    elif isinstance(part, list):
        for item in part:
            storages(item, found)
    elif type(part).__module__.startswith("qwen3_tts_engine.talker"):
        storages(list(vars(part).values()), found)
    return found


@pytest.mark.parametrize("slots", [1, 8, 24, 256, 300, 1024])
def test_counts_the_graphs_that_are_captured(slots: int, checkpoint_of: CheckpointOf) -> None:
    checkpoint = Checkpoint.open(str(checkpoint_of("base")))
    sizes = {"max_streams": slots, "max_text_tokens": 8, "max_frames_limit": 8, "kernels": "off"}
    config = EngineConfig.model_validate({"checkpoint": str(checkpoint.folder), **sizes})
    graphs, captured = as_graph_runner(load_runner(checkpoint, config, CPU)), list[int]()
    graphs._capture = lambda padding, run: CapturedRows(padding)  # type: ignore[assignment, method-assign, return-value]
    graphs._make_memory = object  # type: ignore[assignment, method-assign]
    graphs.capture(lambda done, total: captured.append(total))
    count = count_graphs(slots, tracked=False)
    assert captured == [count] * count


def test_other_models_take_memory_where_they_run() -> None:
    engine = {
        "library": "tensorrt",
        "version": "10.0",
        "gpu": "any",
        "compute_capability": "9.0",
        "strongly_typed": True,
    }
    engine |= {"level": 0, "layers": 1, "size": GIB, "build_seconds": 1.0, "profiles": [], "plugin": True}
    plan = CODEC.model_copy(update={"form": "tensorrt"}).model_validate(
        CODEC.model_dump() | {"form": "tensorrt", "engine": engine}
    )
    found = codec_model("code2wav", plan, DECODER, 80 * GIB)
    assert not found.has_process
    assert found.size > 7 * GIB
    assert codec_model("code2wav", CODEC.model_copy(update={"form": "onnx"}), DECODER, 80 * GIB).size == 0
    assert all(row_frames(total * GIB) == codec_row_frames(total * GIB) for total in range(4, 200))
    sizes = [codec_model("code2wav", CODEC, DECODER, total * GIB).size for total in (6, 12, 24)]
    assert sizes == sorted(set(sizes))
    encoder = EncoderManifest.model_validate(MANIFEST | {"form": "python", "digest": "any", "output_size": 16})
    assert encoder_model("codec_encoder", encoder, CODEC_ENCODER_BYTES).size == CODEC_ENCODER_BYTES + CONTEXT_BYTES
    on_cpu = encoder.model_copy(update={"form": "onnx"})
    assert encoder_model("codec_encoder", on_cpu, CODEC_ENCODER_BYTES).size == 0


@pytest.mark.parametrize("streams", [1, 14, 15, 16, 256])
def test_codec_states_are_those_that_code2wav_allocates(streams: int) -> None:
    rows = HostRows(1, Contract(**terms()))  # type: ignore[arg-type]
    claimed = np.arange(1, streams + 1)
    rows.open(np.stack([claimed, claimed, 0 * claimed, 0 * claimed + 7], axis=1).astype(np.int32))
    plans = [MemoryNeeds(model_of("1.7b"), needs("1.7b").config, size).plan(streams) for size in (0, 1 << 20)]
    assert plans[1].states - plans[0].states == sum(map(len, rows._blocks.values())) << 20


@pytest.mark.parametrize(("gib", "most"), [(8, 32), (24, 192), (80, 256)])
def test_auto_chooses_no_more_streams_than_a_plan_has_rows(gib: int, most: int) -> None:
    state = 2 * state_size(DECODER)
    rows = plan_rows(gib * GIB, state)
    free = MemoryNeeds(model_of("1.7b"), needs("1.7b").config, state, rows).choose(GpuMemory(1000 * GIB, 1000 * GIB))
    assert free.streams == most <= rows - PUBLIC_ROWS - 1


@pytest.mark.parametrize(("rows", "voices"), [(None, 256), (400, 79), (200, 65)])
def test_voices_take_the_rows_that_slots_leave(rows: int | None, voices: int) -> None:
    """But as many as a call may read, without which the claim of rows fails."""
    counts = RowCounts.of(256, 1 << 40, 1 << 20, rows)
    assert (counts.slots, counts.voices) == (256, voices)
    assert rows is None or counts.fits(rows) == (voices > 65)


def test_a_clone_s_server_takes_its_voices_cache_as_well() -> None:
    clones, others = needs("1.7b", "base").plan(8), needs("1.7b").plan(8)
    assert clones.states - others.states >= 512 << 20
