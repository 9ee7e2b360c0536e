"""Starts, drives and stops the worker processes of a benchmark."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import cast

from qwen3_tts_client.bench import worker
from qwen3_tts_client.bench.load import Phase, Share
from qwen3_tts_client.bench.worker import PhaseDone, WorkerConfig
from qwen3_tts_client.errors import ClientError, ExitCode

POLL_S = 1.0
CLOSE_TIMEOUT_S = 10.0


class Workers:
    """Raises ClientError if a worker dies or cannot reach the server."""

    def __init__(self, config: WorkerConfig, workers: int) -> None:
        # spawn: gRPC does not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._processes, self._pipes = [], []
        for number in range(workers):
            pipe, child_end = context.Pipe()
            share = replace(config, share=Share(number, workers))
            process = context.Process(target=worker.main, args=(share, child_end), daemon=True)
            process.start()
            child_end.close()  # so that a worker's death raises EOFError here
            self._processes.append(process)
            self._pipes.append(pipe)

    def __enter__(self) -> "Workers":
        for pipe in self._pipes:
            status = self._receive(pipe)
            if isinstance(status, ClientError):
                raise status
        return self

    def __exit__(self, error: object, *rest: object) -> None:
        if error:
            self._interrupt()
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(CLOSE_TIMEOUT_S)
            process.kill()

    def run(self, phase: Phase, on_poll: Callable[[], None]) -> list[PhaseDone]:
        """Returns once every stream of the phase has ended. Ctrl-C ends it early and sets `interrupted`."""
        for pipe in self._pipes:
            self._send(pipe, phase)
        done: list[PhaseDone] = []
        waiting = list(self._pipes)
        while waiting:
            try:
                for pipe in cast(Sequence[Connection], wait(waiting, POLL_S)):
                    done.append(cast(PhaseDone, self._receive(pipe)))
                    waiting.remove(pipe)
                on_poll()
            except KeyboardInterrupt:
                self._interrupt()
        return done

    def _interrupt(self) -> None:
        for process in self._processes:
            if process.pid and process.is_alive():
                os.kill(process.pid, signal.SIGINT)

    def _send(self, pipe: Connection, phase: Phase) -> None:
        try:
            pipe.send(phase)
        except BrokenPipeError:
            raise _dead() from None

    def _receive(self, pipe: Connection) -> object:
        try:
            return pipe.recv()
        except EOFError:
            raise _dead() from None


def _dead() -> ClientError:
    return ClientError("a worker process died; its records are kept", ExitCode.REQUEST)
