"""What codec and talker training share: budget and learning rate, averages, optimisers, steps as CUDA graphs."""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

Metrics = dict[str, Tensor]
WARM_UP_STEPS = 3
LEAST_RATE = 0.02


def best_device() -> torch.device:
    if not torch.cuda.is_available():
        return torch.device("cpu")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    # On an H200 cuDNN's search for the fastest algorithms took 16 s for the first step, and chose worse: 5 steps a
    # second instead of 36.
    torch.backends.cudnn.benchmark = False
    return torch.device("cuda")


def half_precision(device: torch.device) -> torch.autocast:
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")


class Budget:
    """Seconds of training: those of earlier runs, those of this run, and those of all."""

    def __init__(self, spent: float, seconds: float, total: float) -> None:
        self._spent, self._start = spent, time.monotonic()
        self._seconds, self.total = seconds, total

    @property
    def elapsed(self) -> float:
        """Seconds of this run."""
        return time.monotonic() - self._start

    @property
    def spent(self) -> float:
        """Seconds of all runs."""
        return self._spent + self.elapsed

    @property
    def ended(self) -> bool:
        return self.elapsed >= self._seconds or self.spent >= self.total


def cosine(progress: float) -> float:
    """1 at the beginning, LEAST_RATE at the end."""
    progress = min(1.0, max(0.0, progress))
    return LEAST_RATE + (1 - LEAST_RATE) * 0.5 * (1 + math.cos(math.pi * progress))


def adam(groups: list[dict[str, object]], betas: tuple[float, float], device: torch.device) -> torch.optim.AdamW:
    """Its learning rate is a tensor, which `set_rate` changes between replays of a graph."""
    gpu = device.type == "cuda"
    rate = torch.tensor(0.0, device=device)
    return torch.optim.AdamW(groups, rate, betas, fused=gpu or None, capturable=gpu)


def set_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"].fill_(rate)


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Its rates stay the tensors on its device, which graphs read."""
    rates = [group["lr"] for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate


def update(optimizers: Sequence[torch.optim.Optimizer], loss: Tensor, limit: float) -> Tensor:
    """One step; returns the norm of the gradients, which are limited per optimiser."""
    norms = []
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    loss.backward()
    for optimizer in optimizers:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        norms.append(nn.utils.clip_grad_norm_(parameters, limit))
        optimizer.step()
    return torch.stack(norms).max()


class Averages:
    """Moving averages of parameters, which speak better than the last values."""

    def __init__(self, parameters: Iterable[nn.Parameter], decay: float) -> None:
        self._parameters = [p.data for p in parameters]
        self.values = [p.clone() for p in self._parameters]
        self._decay = decay

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self._decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(self.values, self._parameters, 1 - decay)

    def __enter__(self) -> None:
        """Puts the averages in place of the parameters."""
        self._last = [p.clone() for p in self._parameters]
        torch._foreach_copy_(self._parameters, self.values)

    def __exit__(self, *_: object) -> None:
        torch._foreach_copy_(self._parameters, self._last)

    def load(self, values: Sequence[Tensor]) -> None:
        for own, value in zip(self.values, values, strict=True):
            own.copy_(value)


class Step:
    """A training step, on a GPU replayed as one CUDA graph.

    The first calls run it as it is, which also takes steps; a graph that cannot be captured is reported once, and the
    step continues without.
    """

    def __init__(self, run: Callable[[Tensor], Metrics], inputs: Tensor) -> None:
        self._run, self._inputs = run, inputs.clone()
        self._graph: torch.cuda.CUDAGraph | None = None
        self._calls, self._graphed = 0, inputs.is_cuda

    def __call__(self, inputs: Tensor) -> Metrics:
        self._inputs.copy_(inputs)
        self._calls += 1
        if self._graphed and self._calls == WARM_UP_STEPS + 1:
            self._capture()
        if self._graph is not None:
            self._graph.replay()
            return self._metrics
        if not self._graphed:
            return self._run(self._inputs)
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            metrics = self._run(self._inputs)
        torch.cuda.current_stream().wait_stream(stream)
        return metrics

    def _capture(self) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            torch.cuda.synchronize()
            with torch.cuda.graph(graph):
                self._metrics = self._run(self._inputs)
            self._graph = graph
        except RuntimeError as error:
            torch.cuda.synchronize()
            self._graphed = False
            print(f"no CUDA graph, training goes on without: {error}", flush=True)


class Log:
    """Prints a line with the time of this run in front."""

    def __init__(self, name: str, budget: Budget) -> None:
        self._name, self._budget = name, budget

    def __call__(self, *what: object) -> None:
        print(f"[{self._name} {self._budget.elapsed:6.1f}]", *what, flush=True)


class Timer:
    """True once every `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._next = seconds, time.monotonic() + seconds

    def due(self) -> bool:
        if time.monotonic() < self._next:
            return False
        self._next = time.monotonic() + self._seconds
        return True


def readable(metrics: Metrics) -> str:
    return " ".join(f"{name} {float(value):.3f}" for name, value in metrics.items())
