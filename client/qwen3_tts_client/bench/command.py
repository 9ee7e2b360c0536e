"""`qwen3-tts bench`: measure a server under a series of loads."""

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from qwen3_tts_client import options
from qwen3_tts_client.analysis.playback import MS, NS
from qwen3_tts_client.analysis.results import SUMMARY_NAME, conclude, open_records
from qwen3_tts_client.analysis.summary import is_good, summarise, sustained_rate
from qwen3_tts_client.analysis.table import load_name
from qwen3_tts_client.bench import options as bench_options
from qwen3_tts_client.bench.load import Phase, Share, poisson_arrivals_ns
from qwen3_tts_client.bench.progress import Progress
from qwen3_tts_client.bench.prompt import BenchPrompt, read_prompts
from qwen3_tts_client.bench.target import TargetConfig, make_target
from qwen3_tts_client.bench.worker import PhaseDone, WorkerConfig
from qwen3_tts_client.bench.workers import Workers
from qwen3_tts_client.errors import ExitCode
from qwen3_tts_client.records.environment import environment
from qwen3_tts_client.records.prometheus import label_of, parse, scrape
from qwen3_tts_client.records.record import FILE_NAME, LoadRecord, RecordWriter, ScrapeRecord, read_run
from qwen3_tts_client.server import Server

add_options = bench_options.add_options

DEFAULT_URLS = {"triton": "localhost:8001", "openai": "http://localhost:8000"}
LEAD_NS = NS // 10  # from dispatching a phase to its start, so that no worker starts late


def run(args: argparse.Namespace) -> ExitCode:
    url = args.url or DEFAULT_URLS[args.service_kind]
    folder = args.artifact_dir or Path("artifacts") / f"{args.model_name}-{datetime.now():%Y%m%d-%H%M%S}"
    target = TargetConfig(
        args.service_kind, url, args.model_name, args.endpoint, args.extra_inputs, options.timeouts(args)
    )
    config = WorkerConfig(
        share=Share(0, 1),
        target=target,
        request=options.speech_request(args, args.text or ""),
        prompts=[BenchPrompt("text", {"text": args.text})] if args.text else read_prompts(args.prompt_file),
        records=folder / FILE_NAME,
        random_seed=args.random_seed,
    )
    server = check_target(target) | {"checkpoint": served_checkpoint(args.metrics_url, args.model_name)}
    header = {"config": _jsonable(vars(args)), "target": server, **environment()}
    writer = open_records(config.records, header)
    try:
        code = Bench(args, config, writer).run(loads(args))
    finally:
        measured = conclude(folder, args.prebuffer_ms, args.verbose)
    if args.binary_search:
        rows = json.loads((folder / SUMMARY_NAME).read_text())["loads"]
        rate = sustained_rate(rows, args.latency_threshold)
        found = "none" if rate is None else f"{rate:g}/s"
        print(f"largest rate with p95 TTFA <= {args.latency_threshold:g} ms and no stall above 50 ms: {found}")
    return max(code, measured)


def loads(args: argparse.Namespace) -> list[tuple[str, float]]:
    """Mode and value of each load."""
    loads = [("first", 1.0)] if args.first_request else []
    loads += [("burst", value) for value in args.burst or []]
    loads += [("closed", value) for value in args.concurrency or []]
    loads += [("open", value) for value in args.request_rate or []]
    return loads or [("closed", 1.0)]


def check_target(target: TargetConfig) -> dict[str, Any]:
    """Returns the server's metadata. Raises ClientError if it is not ready."""
    if target.service_kind != "triton":
        make_target(target)
        return {"url": target.url}
    with Server(target.url, target.model_name) as server:
        server.check_ready()
        return {"url": target.url, **server.describe()}


def served_checkpoint(metrics_url: str, model_name: str) -> str | None:
    """What the server's metrics name; None without them."""
    samples = parse(scrape(metrics_url) or "")
    return label_of(samples, "qwen3_tts_info", f'model="{model_name}"', "checkpoint")


class Bench:
    def __init__(self, args: argparse.Namespace, config: WorkerConfig, writer: RecordWriter) -> None:
        self._args = args
        self._config = config
        self._writer = writer
        self._metrics_url = args.metrics_url
        if scrape(args.metrics_url) is None:
            print(f"no metrics at {args.metrics_url}: measuring without them", file=sys.stderr)
            self._metrics_url = None

    def run(self, loads: list[tuple[str, float]]) -> ExitCode:
        """Measurements made before an interruption or error stay on disk."""
        with Workers(self._config, self._args.workers) as workers:
            rates = [value for mode, value in loads if mode == "open"] if self._args.binary_search else []
            loads = loads[: len(loads) - len(rates)]
            for number, (mode, value) in enumerate(loads):
                if self._measure(workers, number, mode, value):
                    return ExitCode.INTERRUPTED
            return self._search(workers, len(loads), sorted(rates))

    def _search(self, workers: Workers, number: int, rates: list[float]) -> ExitCode:
        """Measures the rates that a binary search for the largest good one visits."""
        low, high = 0, len(rates)
        while low < high:
            middle = (low + high) // 2
            if self._measure(workers, number, "open", rates[middle]):
                return ExitCode.INTERRUPTED
            run = read_run(self._config.records.parent)
            [row] = summarise(replace(run, loads=run.loads[-1:]), round(self._args.prebuffer_ms * MS))
            if is_good(row, self._args.latency_threshold):
                low = middle + 1
            else:
                high = middle
            number += 1
        return ExitCode.OK

    def _measure(self, workers: Workers, number: int, mode: str, value: float) -> bool:
        """Returns whether it was interrupted."""
        check_target(self._config.target)
        print(load_name(mode, value), file=sys.stderr)
        if mode in ("burst", "first"):
            return self._measure_bursts(workers, number, mode, value)
        warmups = self._args.warmup_request_count
        if mode == "closed" and warmups:
            warmup = self._phase(number, "warmup", mode, value, warmups)
            if any(done.interrupted for done in self._run(workers, warmup)):
                return True
        self._scrape(number, "before")
        phase = self._phase(number, "measure", mode, value, self._args.request_count)
        self._writer.append(LoadRecord(number, mode, value, window_start_ns(phase), phase.stop_ns or 0, end_ns=0))
        done = self._run(workers, phase, lambda: self._scrape(number, "during", "gauge"))
        self._scrape(number, "after")
        return self._record(phase, done)

    def _measure_bursts(self, workers: Workers, number: int, mode: str, value: float) -> bool:
        """Each round starts once all streams of the last one have ended."""
        rounds = 1 if mode == "first" else self._args.burst_rounds
        self._scrape(number, "before")
        done: list[PhaseDone] = []
        first = self._phase(number, "measure", mode, value, int(value))
        self._writer.append(LoadRecord(number, mode, value, first.start_ns, 0, end_ns=0))
        for _ in range(rounds):
            phase = self._phase(number, "measure", mode, value, int(value))
            done += self._run(workers, phase)
            if any(part.interrupted for part in done):
                break
        self._scrape(number, "after")
        return self._record(first, done)

    def _run(self, workers: Workers, phase: Phase, on_poll: Callable[[], None] = lambda: None) -> list[PhaseDone]:
        with Progress(self._config.records, load_name(phase.mode, phase.value), phase) as progress:

            def poll() -> None:
                on_poll()
                progress.update()

            return workers.run(phase, poll)

    def _phase(self, number: int, name: str, mode: str, value: float, requests: int | None) -> Phase:
        warmups = self._args.warmup_request_count if mode == "open" else 0
        phase = Phase(
            load=number,
            name=name,
            mode=mode,
            value=value,
            start_ns=time.perf_counter_ns() + LEAD_NS,
            stagger_ns=round(self._args.stagger_ms * MS) if mode == "closed" and value > 1 else 0,
            requests=requests and requests + warmups,
            stop_ns=None,
            seed=f"{self._args.random_seed} {value:g} {name}",
            warmups=warmups,
        )
        return (
            phase if requests else replace(phase, stop_ns=window_start_ns(phase) + self._args.measurement_interval * MS)
        )

    def _record(self, phase: Phase, done: list[PhaseDone]) -> bool:
        interrupted = any(part.interrupted for part in done)
        end_ns = max(part.end_ns for part in done)
        stop_ns = end_ns if phase.stop_ns is None else min(end_ns, phase.stop_ns)
        start_ns = min(window_start_ns(phase), stop_ns - 1)
        self._writer.append(LoadRecord(phase.load, phase.mode, phase.value, start_ns, stop_ns, end_ns, interrupted))
        for part in done:
            self._writer.append(part.client)
        return interrupted

    def _scrape(self, load: int, moment: str, kind: str | None = None) -> None:
        if self._metrics_url and (text := scrape(self._metrics_url)):
            self._writer.append(ScrapeRecord(load, moment, time.perf_counter_ns(), parse(text, kind)))


def window_start_ns(phase: Phase) -> int:
    """Start of the measurement window: once all streams of a closed loop run, or at the last warm-up arrival.

    A closed loop with a request count may end before that, so it is measured from its start.
    """
    if phase.mode != "open":
        return phase.start_ns + (0 if phase.requests else phase.stagger_ns)
    warmups = itertools.islice(poisson_arrivals_ns(phase), phase.warmups)
    return max(warmups, default=phase.start_ns)


def _jsonable(values: dict[str, Any]) -> dict[str, Any]:
    return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
