"""How many streams fit into a GPU's memory, and what takes it: arithmetic on shapes and constants, in bytes."""

from dataclasses import dataclass
from math import prod

from qwen3_tts_engine.checkpoint.configs import CodecDecoderConfig, ModelConfig, TalkerConfig
from qwen3_tts_engine.checkpoint.manifest import CodecManifest, EncoderManifest
from qwen3_tts_engine.checkpoint.tensor_shapes import TensorShapes, codec_decoder_shapes, talker_shapes
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MAX_BATCH, RowCounts, plan_rows
from qwen3_tts_engine.config import MOST_AUTO_STREAMS, ConfigError, EngineConfig, max_positions
from qwen3_tts_engine.talker.graph_runner import MAX_JOINT_PROMPTS, ROW_BUCKETS, count_graphs, prefill_buckets

MIB, GIB = 1 << 20, 1 << 30
# A stream of ordinary length: 30 s of speech from 100 text tokens.
COMMON_POSITIONS = 512
# Numbers of streams that auto chooses from: the largest ticks of as many have graphs without padding.
STREAMS = tuple(rows for rows in ROW_BUCKETS if rows <= MOST_AUTO_STREAMS)
# Bytes of an element of weights and keys (bfloat16), and of codec weights and states (FP16).
ELEMENT = 2

# Measured on one H200 (torch.cuda.mem_get_info before and after), where contexts are larger than on smaller GPUs.
# A process's CUDA context with the kernels and libraries that it loads.
CONTEXT_BYTES = 700 * MIB
# The part of it that the talker loads after free memory is measured, and the allocator's rounding.
RESERVE_BYTES = 320 * MIB
# A captured CUDA graph of the talker, on average.
GRAPH_BYTES = 3 * MIB // 2
# Warm-up runs and captured graphs have activations of their own.
ACTIVATION_COPIES = 2
# code2wav in the form python: all its graphs, what a frame of a row takes in the largest one, and weights that Hopper's
# kernels have in a second order.
CODEC_GRAPHS_BYTES, CODEC_FRAME_BYTES, CODEC_WEIGHT_COPIES = 120 * MIB, 4 * MIB, 1.5
# Rows of states that it allocates together (code2wav_step/rows.py).
CODEC_BLOCK_ROWS = 16
# Most heads of both layouts (export/alignment.py).
TRACKED_HEADS = 12
# Rows times frames of its largest graph, from so many GiB on (code2wav_step/buckets.py).
CODEC_ROW_FRAMES = {0: 64, 9: 128, 11: 256, 20: 512}
# Memory of a row's frame in the execution context of a plan (docs/code2wav.md).
PLAN_FRAME_BYTES = 3_700_000
# The encoders of clones for 30 s of sound: weights in FP32 and activations.
SPEAKER_ENCODER_BYTES, CODEC_ENCODER_BYTES = 192 * MIB, 1 * GIB


@dataclass(frozen=True)
class OtherModel:
    """A model of this server on the talker's GPU."""

    name: str
    size: int
    """Once it is loaded, with its process's CUDA context."""
    has_process: bool
    """Whether in a process of its own, or in tritonserver's."""


@dataclass(frozen=True)
class GpuMemory:
    """What this process sees, which has a CUDA context already."""

    free: int
    total: int
    taken: int = 0
    """Memory that this server's other models hold."""
    awaited: int = 0
    """Memory that they will still take."""

    def available(self, share: float) -> int:
        """Memory for the talker and what is awaited, if this server may take `share` of the total."""
        return max(0, min(self.free, int(share * self.total) - CONTEXT_BYTES - self.taken))


@dataclass(frozen=True)
class MemoryPlan:
    """What a server with `streams` slots still takes."""

    streams: int
    positions: int
    """Positions of the cache."""
    weights: int
    cache: int
    states: int
    graphs: int
    awaited: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.states + self.graphs + self.awaited + RESERVE_BYTES

    def __str__(self) -> str:
        held = f"{_streams(self.streams)}, {self.positions} positions"
        parts = (f"weights {gib(self.weights)}", f"cache {gib(self.cache)} ({held})", f"states {gib(self.states)}")
        rest = (f"graphs {gib(self.graphs)}", f"other models {gib(self.awaited)}", f"reserve {gib(RESERVE_BYTES)}")
        return ", ".join((*parts, *rest))


@dataclass(frozen=True)
class MemoryNeeds:
    """What a checkpoint takes with these settings."""

    model: ModelConfig
    config: EngineConfig
    codec_state: int
    """Bytes of one stream's state."""
    plan_rows: int | None = None
    """Rows of states that a TensorRT plan has, in `awaited`; otherwise the codec allocates those that are used."""

    def plan(self, streams: int, awaited: int = 0) -> MemoryPlan:
        talker, config = self.model.talker_config, self.config
        longest = max_positions(self.model, config)
        page = page_bytes(talker, config.page_size)
        cache = int(config.kv_cache_gib * GIB) or page * cache_pages(config, longest, streams)
        states = 0 if self.plan_rows else self._row_bytes(streams)
        # A slot absorbs padding.
        states += (streams + 2) * self._slot_bytes(longest)
        graphs = graph_bytes(talker, streams) if config.kernels in ("auto", "required") else 0
        positions = cache // page * config.page_size
        return MemoryPlan(streams, positions, weight_bytes(self.model), cache, states, graphs, awaited)

    def fitting(self, memory: GpuMemory) -> MemoryPlan | None:
        """The plan for max_streams, or with auto for as many streams as fit; None if it does not fit."""
        wanted = STREAMS if self.config.has_auto_streams else (self.config.max_streams,)
        if self.config.has_auto_streams and self.plan_rows:
            wanted = tuple(streams for streams in STREAMS if self._rows(streams).fits(self.plan_rows))
        plans = (self.plan(streams, memory.awaited) for streams in reversed(wanted))
        return next((plan for plan in plans if self._fits(plan, memory)), None)

    def choose(self, memory: GpuMemory) -> MemoryPlan:
        """Like `fitting`, but raises ConfigError, with the number of streams that would fit, if it does not."""
        if plan := self.fitting(memory):
            return plan
        streams = 1 if self.config.has_auto_streams else self.config.max_streams
        needed = self.plan(streams, memory.awaited)
        fewer = (self.plan(count, memory.awaited) for count in range(streams - 1, 0, -1))
        most = next((plan.streams for plan in fewer if self._fits(plan, memory)), 0)
        available = memory.available(self.config.gpu_memory_share)
        is_shared = available < memory.free
        where = "the share of this server (gpu_memory_share)" if is_shared else "free"
        if most:
            advice = f"at most {most}, or set a smaller kv_cache_gib"
        else:
            smaller = "kv_cache_gib" if self.config.kv_cache_gib else "max_frames_limit"
            advice = f"lower {smaller}, or {'raise gpu_memory_share' if is_shared else 'free memory'}"
        raise ConfigError(
            f"max_streams: {gib(needed.total)} GiB are required for {_streams(streams)}, "
            f"{gib(available)} are {where}: {advice}; {needed}"
        )

    def _rows(self, streams: int) -> RowCounts:
        voice_bytes = self.config.voice_cache_mib * MIB if self.model.tts_model_type == "base" else 0
        return RowCounts.of(streams, voice_bytes, self.codec_state, self.plan_rows)

    def _row_bytes(self, streams: int) -> int:
        """Bytes of all rows and two more: zeros, and a target for writes that belong to no row."""
        blocks = -(-(self._rows(streams).total + 1) // CODEC_BLOCK_ROWS)
        return (blocks * CODEC_BLOCK_ROWS + 1) * self.codec_state

    def _fits(self, plan: MemoryPlan, memory: GpuMemory) -> bool:
        return plan.total <= memory.available(self.config.gpu_memory_share)

    def _slot_bytes(self, longest: int) -> int:
        """Bytes per slot of talker.slot_state, the text tracker and the code predictor's keys."""
        talker = self.model.talker_config
        predictor = talker.code_predictor_config
        fields = -(-longest // self.config.page_size) + 2 * self.config.max_text_tokens
        # float32 probabilities of the text tracker, and its heads' scores of a tick's row.
        tracked = 4 * (1 + TRACKED_HEADS) * self.config.max_text_tokens
        frame = 2 * predictor.num_hidden_layers * talker.num_code_groups * predictor.key_value_size
        return 8 * fields + tracked + predictor.vocab_size + ELEMENT * (frame + 2 * talker.hidden_size)


def weight_bytes(model: ModelConfig, element: int = ELEMENT) -> int:
    """Bytes of the loaded talker and code predictor. Projected text and code tables replace those of the checkpoint."""
    talker, shapes = model.talker_config, talker_shapes(model)
    narrow = talker.code_predictor_config.hidden_size
    kept = {name: shape for name, shape in shapes.items() if ".text_" not in name}
    codes = sum(shape[0] for name, shape in kept.items() if "codec_embedding" in name) + 1
    tables = (talker.text_vocab_size + 1) * talker.hidden_size + talker.hidden_size
    if narrow != talker.hidden_size:
        tables += codes * narrow
    return element * (_elements(kept) + tables)


def page_bytes(talker: TalkerConfig, page_size: int, element: int = ELEMENT) -> int:
    return page_size * 2 * talker.num_hidden_layers * talker.key_value_size * element


def cache_pages(config: EngineConfig, longest: int, streams: int) -> int:
    """Pages of the automatic cache: streams of ordinary length, or a single one of `longest` positions."""
    return -(-max(longest, streams * COMMON_POSITIONS) // config.page_size)


def graph_bytes(talker: TalkerConfig, streams: int) -> int:
    """Graphs and their activations, which all share; the largest ones have prompts."""
    rows = max(*prefill_buckets(streams), streams + MAX_JOINT_PROMPTS)
    row = 4 * talker.hidden_size + 2 * (talker.query_size + talker.key_value_size) + 3 * talker.intermediate_size
    return count_graphs(streams) * GRAPH_BYTES + ACTIVATION_COPIES * ELEMENT * rows * row


def codec_row_frames(total: int) -> int:
    """Rows times frames of code2wav's largest graph on a GPU of `total` bytes."""
    return max(frames for least, frames in CODEC_ROW_FRAMES.items() if total >= least * GIB)


def codec_model(name: str, manifest: CodecManifest, decoder: CodecDecoderConfig, total: int) -> OtherModel:
    """code2wav, on a GPU of `total` bytes."""
    if manifest.form == "python":
        weights = int(CODEC_WEIGHT_COPIES * ELEMENT * _elements(codec_decoder_shapes(decoder)))
        buffers = MAX_BATCH * ELEMENT * manifest.state_size + codec_row_frames(total) * CODEC_FRAME_BYTES
        return OtherModel(name, CONTEXT_BYTES + weights + buffers + CODEC_GRAPHS_BYTES, has_process=True)
    if engine := manifest.engine:
        rows = plan_rows(total, ELEMENT * manifest.state_size) * ELEMENT * manifest.state_size
        return OtherModel(name, engine.size + MAX_BATCH * CHUNK_FRAMES[-1] * PLAN_FRAME_BYTES + rows, has_process=False)
    return OtherModel(name, 0, has_process=False)  # on the CPU


def encoder_model(name: str, manifest: EncoderManifest, size: int) -> OtherModel:
    """`size` is SPEAKER_ENCODER_BYTES or CODEC_ENCODER_BYTES."""
    has_process = manifest.form == "python"
    return OtherModel(name, 0 if manifest.form == "onnx" else size + has_process * CONTEXT_BYTES, has_process)


def gib(size: int) -> str:
    return f"{size / GIB:.1f}"


def _streams(count: int) -> str:
    return "1 stream" if count == 1 else f"{count} streams"


def _elements(shapes: TensorShapes) -> int:
    return sum(map(prod, shapes.values()))
