"""Builds the engine and its clients from the configuration."""

import logging
import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch

from qwen3_tts_engine.audio import FRAME_SECONDS
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.manifest import MANIFEST, CodecManifest, EncoderManifest
from qwen3_tts_engine.checkpoint.tensorrt_plan import check_plan
from qwen3_tts_engine.codec import contract
from qwen3_tts_engine.codec.client import Code2Wav
from qwen3_tts_engine.codec.golden import Golden
from qwen3_tts_engine.codec.line import Line
from qwen3_tts_engine.codec.row_calls import RowCalls, Watch
from qwen3_tts_engine.codec.rows import owner_key
from qwen3_tts_engine.config import ENVIRONMENT_PREFIX, ConfigError, EngineConfig
from qwen3_tts_engine.engine.delivery import Sending
from qwen3_tts_engine.engine.engine import Engine
from qwen3_tts_engine.environment import unknown_variables
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.interfaces import CallModel, CodecClient, Runner, SchedulerLimits
from qwen3_tts_engine.scheduling.capacity import Capacity
from qwen3_tts_engine.scheduling.chunker import Chunker
from qwen3_tts_engine.scheduling.newcomers import MAX_PREFILL_SECONDS
from qwen3_tts_engine.scheduling.scheduler import Scheduler
from qwen3_tts_engine.scheduling.slot_table import SlotTable
from qwen3_tts_engine.talker import cpu, gpu_memory, mps
from qwen3_tts_engine.talker.memory_plan import (
    CODEC_ENCODER_BYTES,
    SPEAKER_ENCODER_BYTES,
    GpuMemory,
    MemoryNeeds,
    OtherModel,
    codec_model,
    encoder_model,
    gib,
)
from qwen3_tts_engine.voices import encoders
from qwen3_tts_engine.voices.record import Origin
from qwen3_tts_engine.voices.service import ReferenceEncoder, Voices
from qwen3_tts_engine.voices.sqlite_store import SqliteStore
from qwen3_tts_engine.voices.store import VoiceStore

log = logging.getLogger(__name__)

MIN_CAPABILITY = (8, 0)
# The most rows times frames of a codec call on a CPU, which takes as long for each as alone: an urgent chunk waits for
# one call.
CPU_CALL_FRAMES = 16
# A call of a plan through Triton beside a talker takes 3 ms for one row and 7 for 15, of which the GPU works 0.4 and 1
# (one H200): a second call fills the pause.
PLAN_CALLS = 2
STATE_DTYPES = {"FP32": torch.float32, "FP16": torch.float16}


def warn_of_unknown_variables(repository: Path) -> None:
    """Logs each variable QWEN3_TTS_… that neither a model of the repository nor another program reads."""
    models = [config.parent.name for config in repository.glob("*/config.pbtxt")]
    for message in unknown_variables(os.environ, models):
        log.warning("%s", message)


def speaks_rest(config: EngineConfig, device: torch.device) -> bool:
    return device.type == "cpu" if config.speak_rest == "auto" else config.speak_rest == "on"


def choose_device(config: EngineConfig, assigned: str) -> torch.device:
    """The configured device; auto means the one that Triton assigned ("cpu" or "cuda:N").

    Raises ConfigError when the device is missing or too old.
    """
    device = torch.device(assigned if config.device == "auto" else config.device)
    if device.type == "cuda":
        if reason := _no_cuda():
            raise ConfigError(f"device: {device}: PyTorch sees no CUDA device: {reason}")
        capability = torch.cuda.get_device_capability(device)
        if capability < MIN_CAPABILITY:
            name, found = torch.cuda.get_device_name(device), ".".join(map(str, capability))
            least = ".".join(map(str, MIN_CAPABILITY))
            raise ConfigError(
                f"device: {name} has compute capability {found}, bfloat16 requires {least} or later: use another GPU, "
                "or serve on the CPU (QWEN3_TTS_DEVICE=cpu, with the codec exported in the form onnx)"
            )
        torch.cuda.set_device(device)
    # On a GPU the host only launches kernels.
    threads = 1 if device.type == "cuda" else cpu.talker_threads(cpu.cores())
    torch.set_num_threads(config.cpu_threads or threads)
    return device


def _no_cuda() -> str | None:
    """Why CUDA cannot start here, for instance that the driver is too old; None if it can."""
    try:
        torch.cuda.init()
    except (RuntimeError, AssertionError) as error:
        return str(error).splitlines()[0]
    return None


def fit_memory(config: EngineConfig, checkpoint: Checkpoint, repository: Path, device: torch.device) -> EngineConfig:
    """The settings with a number of streams, which fit into the free memory of a GPU beside this server's other models.

    Raises ConfigError, with what would fit, and CheckpointError for another model that is not exported.
    """
    if device.type == "cpu":
        cpu.check(checkpoint, config.cpu_weights)
        return config
    decoder = checkpoint.speech_tokenizer.decoder_config
    manifest = CodecManifest.read(repository / contract.MODEL_NAME / "1")
    state = contract.state_size(decoder) * STATE_DTYPES[manifest.state_dtype].itemsize
    needs = MemoryNeeds(checkpoint.config, config, state, _plan_rows(manifest, state, device))
    codec = codec_model(contract.MODEL_NAME, manifest, decoder, _codec_memory(device))
    others = [codec, *_encoder_models(checkpoint, config, repository)]

    def suffices(memory: GpuMemory) -> bool:
        plan = needs.fitting(memory)
        return plan is not None and plan.streams == config.max_streams

    memory = gpu_memory.measure(device, others, suffices)
    plan = needs.choose(memory)
    log.info("GPU memory: %s of %s GiB free; %s", gib(memory.free), gib(memory.total), plan)
    return config.model_copy(update={"max_streams": plan.streams})


def _codec_memory(device: torch.device) -> int:
    """Bytes of the GPU that the codec reckons with; all talkers share it, so it has the environment's settings."""
    _, total = torch.cuda.mem_get_info(device)
    return int(float(os.environ.get(f"{ENVIRONMENT_PREFIX}GPU_MEMORY_SHARE") or 1) * total)


def _plan_rows(manifest: CodecManifest, state_bytes: int, device: torch.device) -> int | None:
    """Rows of a TensorRT plan; the other forms reserve theirs as talkers claim them."""
    return contract.plan_rows(_codec_memory(device), state_bytes) if manifest.form == "tensorrt" else None


def _encoder_models(checkpoint: Checkpoint, config: EngineConfig, repository: Path) -> list[OtherModel]:
    if checkpoint.config.tts_model_type != "base":
        return []
    sizes = {config.speaker_encoder: SPEAKER_ENCODER_BYTES, encoders.CODEC_ENCODER: CODEC_ENCODER_BYTES}
    return [encoder_model(name, EncoderManifest.read(repository / name / "1"), size) for name, size in sizes.items()]


def on_thread(device: torch.device) -> Callable[[], None]:
    """Start hook of threads that use `device`: PyTorch's current device is thread-local."""
    return partial(torch.cuda.set_device, device) if device.type == "cuda" else lambda: None


def build_engine(
    config: EngineConfig,
    num_codebooks: int,
    runner: Runner,
    codec: CodecClient,
    on_thread_start: Callable[[], None] = lambda: None,
    sending: Sending = nullcontext,
    min_token_frames: float = 0.0,
) -> Engine:
    """The engine, not started; `min_token_frames` is SchedulerLimits'."""
    table = SlotTable(config.max_streams, config.max_frames_limit, num_codebooks)
    pages = (runner.limits.page_size, runner.limits.num_pages)
    assert pages[0] == config.page_size, "the hashes of prompts are of other pages than the runner's"
    limits = SchedulerLimits(
        *pages, config.max_streams, config.max_waiting, MAX_PREFILL_SECONDS, config.overload == "refuse",
        _frames(config.max_silence_seconds), _frames(config.max_repeated_seconds), min_token_frames,
    )  # fmt: skip
    # A graph's tick costs nearly the same for one stream and for many; on a CPU the cost is per stream.
    is_gpu = runner.lookahead > 0
    capacity = Capacity(config.load_limit, config.max_chunk_frames, batching_is_free=is_gpu)
    scheduler = Scheduler(table, limits, capacity)
    bound = {} if is_gpu else {"call_frames": partial(capacity.call_frames, most=CPU_CALL_FRAMES)}
    chunker = Chunker(table, config.max_chunk_frames, capacity.frame_seconds, **bound)
    take_turns = config.take_turns == "on" or (config.take_turns == "auto" and _time_slices(runner))
    return Engine(
        scheduler, chunker, runner, codec, take_turns=take_turns, on_thread_start=on_thread_start, sending=sending
    )


def _frames(seconds: float) -> int:
    return round(seconds / FRAME_SECONDS)


def _time_slices(runner: Runner) -> bool:
    """Whether talker and codec would time-slice a GPU."""
    if not runner.lookahead:
        return False
    is_shared = torch.cuda.is_available() and mps.is_active(torch.cuda.current_device())
    log.info("talker and codec share the GPU %s", "through MPS" if is_shared else "in turn, for want of MPS")
    return not is_shared


def check_encoders(checkpoint: Checkpoint, config: EngineConfig, repository: Path, device: torch.device) -> None:
    """Raises CheckpointError, naming the file, when the encoders in `repository` were not exported from this Base
    checkpoint, or are plans that `device` cannot run."""
    models = ((config.speaker_encoder, checkpoint.speaker_digest), (encoders.CODEC_ENCODER, checkpoint.codec_digest))
    for name, digest in models:
        folder = repository / name / "1"
        manifest = encoders.read_encoder(folder, digest, checkpoint.folder)
        check_plan(folder, manifest, device, [encoders.input_shapes(config.max_reference_frames)])


def open_voices(
    checkpoint: Checkpoint,
    config: EngineConfig,
    prompts: PromptBuilder,
    encoder: ReferenceEncoder,
    max_cached: int,
    on_thread_start: Callable[[], None],
) -> Voices:
    """The voice service of a Base checkpoint."""
    hidden = checkpoint.config.talker_config.hidden_size
    origin = Origin(hidden, checkpoint.speaker_digest, checkpoint.codec_digest)
    return Voices(encoder, open_store(config), origin, config, prompts.check_reference, max_cached, on_thread_start)


def open_store(config: EngineConfig) -> VoiceStore:
    """The registry that the settings name. Raises ConfigError when its database cannot be used."""
    limits = (config.max_voices, config.voices_mib << 20)
    if config.voices_dsn is None:
        return SqliteStore(Path(config.voices_folder).expanduser(), *limits)
    try:
        # Only here, since a server without a database needs no client of one.
        from qwen3_tts_engine.voices.postgres_store import PostgresStore
    except ImportError as error:
        raise ConfigError(f"voices_dsn: {error}: install 'psycopg[binary]', the extra postgres") from None
    return PostgresStore(config.voices_dsn.get_secret_value(), *limits)


def check_codec(checkpoint: Checkpoint, config: EngineConfig, repository: Path, device: torch.device) -> CodecManifest:
    """The manifest of the code2wav model of `repository`.

    Raises CheckpointError, naming file and field, when that model was not exported from this checkpoint.
    """
    folder = repository / contract.MODEL_NAME / "1"
    manifest = CodecManifest.read(folder)
    expected = {
        "state_size": contract.state_size(checkpoint.speech_tokenizer.decoder_config),
        "sample_rate": checkpoint.speech_tokenizer.output_sample_rate,
        "codec_digest": checkpoint.codec_digest,
    }
    for name, value in expected.items():
        if (found := getattr(manifest, name)) != value:
            wrong = f"{name} is {found}, {checkpoint.folder} has {value}"
            raise CheckpointError(f"{folder / MANIFEST}: {wrong}: export this checkpoint's codec")
    chunk_frames = _chunk_frames(config, manifest, folder / MANIFEST)
    check_plan(folder, manifest, device, contract.served_shapes(chunk_frames))
    return manifest


def open_codec(
    checkpoint: Checkpoint,
    config: EngineConfig,
    manifest: CodecManifest,
    device: torch.device,
    owner: str,
    call_model: CallModel,
    watch: Watch,
) -> Code2Wav:
    """The client of code2wav of the model instance `owner`; its rows are not claimed yet."""
    state_bytes = manifest.state_size * STATE_DTYPES[manifest.state_dtype].itemsize
    is_base = checkpoint.config.tts_model_type == "base"
    voice_bytes = (config.voice_cache_mib << 20) * is_base
    plan_rows = _plan_rows(manifest, state_bytes, device)
    counts = contract.RowCounts.of(config.max_streams, voice_bytes, state_bytes, plan_rows)
    decoder = checkpoint.speech_tokenizer.decoder_config
    facts = (owner_key(owner), counts, contract.max_history(decoder), config.max_chunk_frames)
    # A plan runs in tritonserver's process, which has no other end of a line.
    is_plan = manifest.form == "tensorrt"
    calls = RowCalls(call_model, watch, None if is_plan else Line())
    return Code2Wav(calls.call, *facts, calls.announce, PLAN_CALLS if is_plan else 1)


def _chunk_frames(config: EngineConfig, manifest: CodecManifest, path: Path) -> list[int]:
    """The chunk lengths that the talker uses; raises CheckpointError when some are not verified."""
    required = [frames for frames in contract.CHUNK_FRAMES if frames <= config.max_chunk_frames]
    if not set(required) <= set(manifest.chunk_frames):
        raise CheckpointError(
            f"{path}: chunk_frames is {manifest.chunk_frames}, max_chunk_frames {config.max_chunk_frames} requires "
            f"{required}: run `python -m export` again, or lower max_chunk_frames"
        )
    return required


def read_golden(checkpoint: Checkpoint, config: EngineConfig, repository: Path) -> Golden | None:
    """The golden cases of the code2wav model of `repository`; None when the comparison is disabled.

    Raises CheckpointError, naming the file, when they are missing or belong to another codec.
    """
    if not config.codec_proof_seconds:
        return None
    return Golden.read(repository / contract.MODEL_NAME / "1", checkpoint.codec_digest)
