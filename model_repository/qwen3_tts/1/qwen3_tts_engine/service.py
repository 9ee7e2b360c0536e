"""One served model, all of it except Triton."""

import gc
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qwen3_tts_engine import startup
from qwen3_tts_engine.arguments import OWNER, assigned_device, repository, version_folder
from qwen3_tts_engine.checkpoint.alignment import Alignment
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec.client import Code2Wav
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.core.streams import Caller
from qwen3_tts_engine.engine.delivery import Sending
from qwen3_tts_engine.frontend.dispatcher import Dispatcher
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.frontend.sequences import Sequences
from qwen3_tts_engine.interfaces import CallModel, Runner
from qwen3_tts_engine.lifecycle import warm_up
from qwen3_tts_engine.lifecycle.draining import DrainFile
from qwen3_tts_engine.lifecycle.gate import Gate
from qwen3_tts_engine.lifecycle.liveness import CallWatch, CountedCodec
from qwen3_tts_engine.lifecycle.opening import Opening
from qwen3_tts_engine.request import RequestError, SequencePosition, Unavailable
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.threads import Ticker
from qwen3_tts_engine.voices.client import ModelEncoder
from qwen3_tts_engine.voices.service import Voices

log = logging.getLogger("qwen3_tts")

# Interval of checks whether the drain file ends the streams.
DRAIN_SECONDS = 0.2
# Checks of idle sequences per limit.
IDLE_CHECKS = 8


class Service:
    """Loads the models; `begin` starts the engine. The make_ methods are replaced in tests."""

    def __init__(
        self,
        args: dict[str, str],
        config: EngineConfig,
        call_model: CallModel,
        *,
        on_open: Callable[[], None],
        on_death: Callable[[BaseException], None],
        sending: Sending,
    ) -> None:
        """`args` are those of Triton's `initialize`; `call_model` calls another model; `sending` is Delivery's.

        Any exception names the cause why the model cannot be loaded.
        """
        self._args = args
        # First, since a misspelled variable may be why something below fails.
        startup.warn_of_unknown_variables(self.repository)
        self._calls = CallWatch()
        self.call_model = self._calls.watched(call_model)
        device = startup.choose_device(config, assigned_device(args))
        self._checkpoint = checkpoint = Checkpoint.open(config.checkpoint, config.revision)
        self.config = config = startup.fit_memory(config, checkpoint, self.repository, device)
        self._codec = codec = self.make_codec(checkpoint, device)
        self._golden = startup.read_golden(checkpoint, config, self.repository)
        self._alignment = Alignment.read(version_folder(args), checkpoint)
        self._prompts = prompts = PromptBuilder(
            checkpoint, config, self._alignment, speaks_rest=startup.speaks_rest(config, device)
        )
        voices = self.make_voices(checkpoint, prompts, codec, device)
        runner = self.make_runner(checkpoint, device)
        on_thread = startup.on_thread(device)
        counted = CountedCodec(codec, config.max_codec_failures, lambda error: self.engine.die(error))
        token_frames = checkpoint.generation.min_frames_per_text_token
        parts = (config, prompts.num_codebooks, runner, counted)
        self.engine = startup.build_engine(*parts, on_thread, sending, token_frames)
        self.engine.on_death = on_death
        self._calls.begin(config.call_timeout_seconds, self.engine.die)
        sequences = Sequences(self.engine, prompts, config.sequence_idle_seconds, config.max_text_characters)
        self._expiry = Ticker("sequences", config.sequence_idle_seconds / IDLE_CHECKS, sequences.expire)
        self._drain = DrainFile(config.drain_file)
        self._dispatcher = Dispatcher(self.engine, prompts, voices, sequences, self._drain.refuses)
        self._ending = Ticker("drain", DRAIN_SECONDS, self._end_if_told)
        self.gate = Gate(config.max_requests, on_open)
        self._opening = Opening(self.engine, self.gate, config, on_thread)
        # Loaded objects live as long as the model; freezing them keeps full collections from stalling all streams.
        gc.collect()
        gc.freeze()

    def begin(self) -> None:
        """Claim the codec's rows, prove it, start the engine and open the gate, on a thread. Triton's `initialize` must
        end at once after this."""
        spoken = warm_up.utterance(self._checkpoint.config, self.config)
        self._opening.begin(self._codec, self._golden, partial(self._prompts.stream, spoken) if spoken else None)

    def accept(self, fields: dict[str, Any], caller: Caller, position: SequencePosition | None) -> None:
        """Dispatch a request once the gate is open, and between the talker's launches; errors end it."""
        self.engine.precedence.wait()
        dispatch = partial(self._dispatcher.accept, fields, caller, position)
        self._refuse_on_error(caller, partial(self.gate.enter, partial(self._refuse_on_error, caller, dispatch)))

    def tokenize(self, texts: Sequence[object]) -> None:
        """Texts of requests that follow, while the talker works."""
        with suppress(Exception):  # the request that it concerns fails by itself
            self._prompts.tokenize(texts)

    def close(self) -> None:
        """End every request with UNAVAILABLE and stop."""
        self._opening.close()
        self._dispatcher.close()
        self._expiry.close()
        self._ending.close()
        self.engine.close()
        self._calls.close()

    def make_runner(self, checkpoint: Checkpoint, device: torch.device) -> Runner:
        return load_runner(checkpoint, self.config, device, self._alignment)

    def make_codec(self, checkpoint: Checkpoint, device: torch.device) -> Code2Wav:
        manifest = startup.check_codec(checkpoint, self.config, self.repository, device)
        calls = (self.call_model, self._calls.call)
        return startup.open_codec(checkpoint, self.config, manifest, device, self._args[OWNER], *calls)

    def make_voices(
        self, checkpoint: Checkpoint, prompts: PromptBuilder, codec: Code2Wav, device: torch.device
    ) -> Voices | None:
        if checkpoint.config.tts_model_type != "base":
            return None
        startup.check_encoders(checkpoint, self.config, self.repository, device)
        encoder = ModelEncoder(self.config, codec.prime, self.call_model)
        return startup.open_voices(
            checkpoint, self.config, prompts, encoder, codec.num_voices, startup.on_thread(device)
        )

    @property
    def repository(self) -> Path:
        return repository(self._args)

    def _end_if_told(self) -> None:
        # Each time, since a stream whose voice was being encoded may begin later.
        if self._drain.ends():
            self.engine.end_all(Unavailable("the server is stopping: send the request to another server"))

    def _refuse_on_error(self, caller: Caller, job: Callable[[], None]) -> None:
        """Run `job`; an exception ends its request."""
        try:
            job()
        except RequestError as error:
            self.engine.delivery.finish(caller, error)
        except Exception as error:
            log.exception("request %s failed before it was queued", caller.key)
            self.engine.delivery.finish(caller, RequestError(f"internal error: {error}"))
