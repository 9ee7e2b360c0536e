"""Triton's entry point: one model instance runs one engine."""

import gc
import json
import logging
import os
import resource
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton_python_backend_utils as pb_utils

from qwen3_tts_engine import metrics, startup
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.frontend.dispatcher import Dispatcher
from qwen3_tts_engine.frontend.prompt_builder import PromptBuilder
from qwen3_tts_engine.frontend.sequences import Sequences
from qwen3_tts_engine.interfaces import CodecClient, Runner
from qwen3_tts_engine.lifecycle import guard, warm_up
from qwen3_tts_engine.lifecycle.draining import DrainFile
from qwen3_tts_engine.lifecycle.gate import Gate
from qwen3_tts_engine.lifecycle.liveness import CountedCodec
from qwen3_tts_engine.lifecycle.opening import Opening
from qwen3_tts_engine.talker.loader import load_runner
from qwen3_tts_engine.threads import Worker
from qwen3_tts_engine.voices.service import Voices
from triton_adapter import bls, telemetry
from triton_adapter.requests import accept
from triton_adapter.responses import CancelWatcher

log = logging.getLogger("qwen3_tts")

# Interpreter switch interval; the default, 5 ms, is as long as a tick.
SWITCH_SECONDS = 0.0005
OnThread = Callable[[], None]


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        """Load the models and start the engine; any exception fails the load, with a message that names the cause."""
        # Before the first CUDA call, which reads it: under MPS the codec (0, normal) goes before the talker (1). At 256
        # streams one H200 then made 1 344 seconds of audio a second, 807 with the two in turn.
        os.environ.setdefault("CUDA_MPS_CLIENT_PRIORITY", "1")
        sys.setswitchinterval(SWITCH_SECONDS)
        _lift_file_limit()
        telemetry.log_through_triton()
        self._args, self._name = args, args["model_name"]
        self._config = config = self._read_config()
        device = startup.choose_device(config, _assigned_device(args))
        checkpoint = Checkpoint.open(config.checkpoint, config.revision)
        codec = self.make_codec(checkpoint, config, device)
        golden = startup.read_golden(checkpoint, config, self._repository)
        prompts = PromptBuilder(checkpoint, config)
        voices = self.make_voices(checkpoint, config, prompts, codec)
        runner = self.make_runner(checkpoint, config, device)
        self._start(runner, codec, prompts, voices, startup.on_thread(device))
        # Loaded objects live as long as the model; freezing them keeps full collections from stalling all streams.
        gc.collect()
        gc.freeze()
        # Last, since Triton itself handles a failed load.
        self._guard = guard.start(self._name)
        if golden is None:
            self._opening.at_once()
        else:
            spoken = warm_up.utterance(checkpoint.config, config)
            self._opening.begin(codec, golden, partial(prompts.stream, spoken) if spoken else None)

    def _read_config(self) -> EngineConfig:
        model_config = json.loads(self._args["model_config"])
        startup.check_instances(model_config["instance_group"])
        values = {name: value["string_value"] for name, value in model_config["parameters"].items()}
        return EngineConfig.from_parameters(values, model=self._name)

    def _start(
        self, runner: Runner, codec: CodecClient, prompts: PromptBuilder, voices: Voices | None, on_thread: OnThread
    ) -> None:
        """Connect the engine to what accepts requests and watches over them."""
        config = self._config
        counted = CountedCodec(codec, config.max_codec_failures, lambda error: self._engine.die(error))
        self._engine = startup.build_engine(config, prompts.num_codebooks, runner, counted, on_thread)
        self._engine.on_death = self._on_death
        bls.CALLS.begin(config.call_timeout_seconds, self._engine.die)
        sequences = Sequences(self._engine, prompts, config.sequence_idle_seconds, config.max_text_characters)
        self._drain = DrainFile(config.drain_file)
        self._dispatcher = Dispatcher(self._engine, prompts, voices, sequences, self._drain.refuses)
        self._watcher = CancelWatcher(self._engine.cancel, sequences.expire)
        capacity = config.max_streams + config.max_waiting
        self._gate, self._intake = Gate(capacity), Worker("intake", capacity)
        labels = {"model": self._name, "version": self._args["model_version"]}
        self._reporter = telemetry.MetricsReporter(self._engine.recorder, self._states, labels)
        self._opening = Opening(self._engine, self._gate, config, on_thread)

    def make_runner(self, checkpoint: Checkpoint, config: EngineConfig, device: torch.device) -> Runner:
        return load_runner(checkpoint, config, device)

    def make_codec(self, checkpoint: Checkpoint, config: EngineConfig, device: torch.device) -> bls.BlsCodec:
        owner = self._args["model_instance_name"]
        states = startup.open_codec(checkpoint, config, self._repository, device, owner)
        return bls.SharedStatesCodec(states) if states.address else bls.BlsCodec(states)

    def make_voices(
        self, checkpoint: Checkpoint, config: EngineConfig, prompts: PromptBuilder, codec: bls.BlsCodec
    ) -> Voices | None:
        if checkpoint.config.tts_model_type != "base":
            return None
        device = codec.states.device
        startup.check_encoders(checkpoint, config, self._repository, device)
        encoder = bls.BlsReferenceEncoder(config, codec)
        return startup.open_voices(checkpoint, config, prompts, encoder, startup.on_thread(device))

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            accept(request, self._gate, self._intake, self._dispatcher, self._watcher)

    def is_ready(self) -> bool:
        """Readiness; called by Triton releases that support it (python_backend pull request 430)."""
        return self._gate.is_open and self._engine.is_alive and not self._drain.is_present()

    def finalize(self) -> None:
        self._opening.close()
        self._dispatcher.close()
        self._engine.close()
        # The closed engine refuses the remaining jobs.
        self._intake.finish()
        self._watcher.close()
        self._reporter.close()
        bls.CALLS.close()
        if self._guard:
            self._guard.close()

    @property
    def _repository(self) -> Path:
        return Path(self._args["model_repository"]).parent

    def _states(self) -> dict[str, float]:
        """Gauges, in the order of their report: who reads that requests are refused reads those that were open then."""
        is_draining = self._drain.refuses()
        return {
            metrics.READY.name: self.is_ready(),
            metrics.OPEN.name: self._watcher.open_requests(),
            metrics.DRAINING.name: is_draining,
        }

    def _on_death(self, error: BaseException) -> None:
        log.error("the engine of %s died: %s; when_dead=%s", self._name, error, self._config.when_dead)
        if self._config.when_dead == "exit" and self._guard:
            self._guard.end_server(unusable=not self._gate.is_open)
        elif self._config.when_dead == "unload":
            pb_utils.unload_model(self._name)


def _lift_file_limit() -> None:
    """Raise the file size limit, which bounds tritonserver's callers: this process may download a checkpoint."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))


def _assigned_device(args: dict[str, str]) -> str:
    return f"cuda:{args['model_instance_device_id']}" if args["model_instance_kind"] == "GPU" else "cpu"
