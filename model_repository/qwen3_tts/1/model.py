"""Triton's entry point: one model instance serves one engine, which has a process of its own."""

import logging
import os
import resource
import sys
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from qwen3_tts_engine import metrics
from qwen3_tts_engine.arguments import OWNER, read_config, repository
from qwen3_tts_engine.checkpoint.manifest import is_plan
from qwen3_tts_engine.codec.contract import MODEL_NAME
from qwen3_tts_engine.lifecycle import guard
from qwen3_tts_engine.lifecycle.draining import DrainFile
from qwen3_tts_engine.lifecycle.logs import log_through
from qwen3_tts_engine.process.parent import EngineProcess
from qwen3_tts_engine.threads import SWITCH_SECONDS
from triton_adapter import bls, telemetry
from triton_adapter.requests import accept
from triton_adapter.responses import CancelWatcher

log = logging.getLogger("qwen3_tts")

ENGINE_PROCESS = Path(__file__).with_name("engine_process.py")


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        """Load the models and start the engine; any exception fails the load, with a message that names the cause."""
        # Before the first CUDA call, which reads it: under MPS the codec (0, normal) goes before the talker (1). At 256
        # streams one H200 then made 1 344 seconds of audio a second, 807 with the two in turn.
        os.environ.setdefault("CUDA_MPS_CLIENT_PRIORITY", "1")
        _lift_file_limit()
        sys.setswitchinterval(SWITCH_SECONDS)
        log_through(telemetry.TritonLogHandler())
        self._name = args["model_name"]
        # The same for this model as long as tritonserver lives, this process's parent.
        args = args | {OWNER: f"{args['model_instance_name']} of {os.getppid()}"}
        self._guard: guard.Guard | None = None
        self._config = config = read_config(args)
        self._drain = DrainFile(config.drain_file)
        self._recorder = metrics.Recorder()
        self._codec_is_plan = is_plan(repository(args) / MODEL_NAME / "1")
        self._engine = EngineProcess(ENGINE_PROCESS, args, bls.call_model, self._on_death, config.max_requests)
        self._watcher = CancelWatcher(self._engine.cancel)
        labels = {"model": self._name, "version": args["model_version"]}
        sources = (self._engine.readings, self._recorder.take)
        facts = {"checkpoint": config.checkpoint}
        self._reporter = telemetry.MetricsReporter(sources, self._states, labels, facts)
        # Last, since Triton itself handles a failed load.
        self._guard = guard.start(self._name)

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            accept(request, self._engine, self._watcher, self._recorder)

    def is_ready(self) -> bool:
        """Readiness; called by Triton releases that support it (python_backend pull request 430)."""
        return self._engine.is_open and self._engine.is_alive and not self._drain.is_present()

    def finalize(self) -> None:
        self._engine.close()
        self._watcher.close()
        self._reporter.close()
        if self._guard:
            self._guard.close()

    def _states(self) -> dict[str, float]:
        """Gauges, in the order of their report: who reads that requests are refused reads those that were open then."""
        is_draining = self._drain.refuses()
        return {
            metrics.READY.name: self.is_ready(),
            metrics.OPEN.name: self._watcher.open_requests(),
            metrics.DRAINING.name: is_draining,
            metrics.CODEC_PLAN.name: self._codec_is_plan,
            metrics.INFO.name: 1.0,
        }

    def _on_death(self, error: BaseException) -> None:
        log.error("the engine of %s died: %s; when_dead=%s", self._name, error, self._config.when_dead)
        if self._config.when_dead == "exit" and self._guard:
            self._guard.end_server(unusable=not self._engine.is_open)
        elif self._config.when_dead == "unload":
            pb_utils.unload_model(self._name)


def _lift_file_limit() -> None:
    """Raise the file size limit, which bounds tritonserver's callers: this process may download a checkpoint."""
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
