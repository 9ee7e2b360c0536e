"""The worker processes of a benchmark, as their parent sees them."""

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


class Fleet:
    """Raises ClientError where a worker cannot reach the server or dies."""

    def __init__(self, config: WorkerConfig, workers: int) -> None:
        # spawn: gRPC does not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._processes, self._pipes = [], []
        for number in range(workers):
            pipe, far_end = context.Pipe()
            share = replace(config, share=Share(number, workers))
            process = context.Process(target=worker.main, args=(share, far_end), daemon=True)
            process.start()
            far_end.close()  # so that a dead worker reads as end of file
            self._processes.append(process)
            self._pipes.append(pipe)

    def __enter__(self) -> "Fleet":
        for pipe in self._pipes:
            answer = self._receive(pipe)
            if isinstance(answer, ClientError):
                raise answer
        return self

    def __exit__(self, error: object, *rest: object) -> None:
        if error:
            self._interrupt()
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(CLOSE_TIMEOUT_S)
            process.kill()

    def run(self, phase: Phase, each_poll: Callable[[], None]) -> list[PhaseDone]:
        """Returns when every stream of the phase is over. Ctrl-C ends it early; the answers say so."""
        for pipe in self._pipes:
            pipe.send(phase)
        done: list[PhaseDone] = []
        waiting = list(self._pipes)
        while waiting:
            try:
                for pipe in cast(Sequence[Connection], wait(waiting, POLL_S)):
                    done.append(cast(PhaseDone, self._receive(pipe)))
                    waiting.remove(pipe)
                each_poll()
            except KeyboardInterrupt:
                self._interrupt()
        return done

    def _interrupt(self) -> None:
        for process in self._processes:
            if process.pid and process.is_alive():
                os.kill(process.pid, signal.SIGINT)

    def _receive(self, pipe: Connection) -> object:
        try:
            return pipe.recv()
        except EOFError:
            raise ClientError("a worker process died; what it recorded is kept", ExitCode.REQUEST) from None
