"""Locust users of a Triton server: each requests speech, plays it to the end, and repeats.

    locust -f scripts/locustfile.py --host localhost:8001 --speaker vivian                          web UI on port 8089
    locust -f scripts/locustfile.py --host localhost:8001 --speaker vivian --headless -u 32 -r 4 -t 60s

Entries: TTFA, audible TTFA and E2E in ms, and `stalled`, the total stall of a stream in ms.
"""

import random
import time
from argparse import ArgumentParser
from dataclasses import replace
from pathlib import Path

# First: locust patches the standard library for gevent, but not modules that imported queue or threading before.
from locust import User, events, task

# isort: split
import grpc
import grpc.experimental.gevent as grpc_gevent
from tritonclient.grpc import service_pb2_grpc

from qwen3_tts_client import options
from qwen3_tts_client.analysis import metrics
from qwen3_tts_client.analysis.playback import NS, duration_ns
from qwen3_tts_client.bench.load import PAUSE_AFTER_FAILURE_S
from qwen3_tts_client.bench.prompt import DEFAULT_FILE, read_prompts
from qwen3_tts_client.errors import SpeechError
from qwen3_tts_client.protocol import encode
from qwen3_tts_client.records.timeline import Timeline, TimelineRecorder
from qwen3_tts_client.stream import CHANNEL_OPTIONS
from qwen3_tts_client.sync_stream import speak

grpc_gevent.init_gevent()
MS = 1_000_000


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_options(parser: ArgumentParser) -> None:
    parser.add_argument("--prompt-file", type=Path, default=DEFAULT_FILE)
    options.add_playback_options(parser)
    options.add_model_options(parser)
    options.add_request_options(parser)


class Caller(User):
    def on_start(self) -> None:
        args = self.environment.parsed_options
        self.prompts = read_prompts(args.prompt_file)
        self.request = options.speech_request(args, "")
        self.channel = grpc.insecure_channel(self.host, options=CHANNEL_OPTIONS)
        self.stub = service_pb2_grpc.GRPCInferenceServiceStub(self.channel)

    def on_stop(self) -> None:
        self.channel.close()

    @task
    def listen(self) -> None:
        args = self.environment.parsed_options
        request = replace(self.request, **random.choice(self.prompts).fields)
        recorder = TimelineRecorder()
        try:
            for arrival_ns, chunk in speak(self.stub, [encode(request, args.model_name)], options.timeouts(args)):
                recorder.add(arrival_ns, chunk)
            recorder.finish()
        except SpeechError as error:
            recorder.finish(error)
        self._report(recorder.stop(), round(args.prebuffer_ms * MS))

    def _report(self, timeline: Timeline, prebuffer_ns: int) -> None:
        if timeline.outcome != "ok":
            self._fire(
                "E2E", timeline, timeline.end_ns - timeline.sent_ns, SpeechError(timeline.outcome, str(timeline.error))
            )
            time.sleep(PAUSE_AFTER_FAILURE_S)
            return
        playback = metrics.played(timeline, prebuffer_ns)
        self._fire("TTFA", timeline, metrics.ttfa_ns(timeline))
        self._fire("audible TTFA", timeline, metrics.audible_ttfa_ns(timeline, playback))
        self._fire("stalled", timeline, playback.stalled_ns)
        self._fire("E2E", timeline, metrics.e2el_ns(timeline))
        playback_end_ns = playback.starts_ns[-1] + duration_ns(timeline.samples[-1], timeline.sample_rate)
        time.sleep(max(0, playback_end_ns - time.perf_counter_ns()) / NS)

    def _fire(self, name: str, timeline: Timeline, value_ns: int | None, error: SpeechError | None = None) -> None:
        if value_ns is not None:
            self.environment.events.request.fire(
                request_type="speech",
                name=name,
                response_time=value_ns / MS,
                response_length=2 * sum(timeline.samples),
                exception=error,
                context={},
            )
