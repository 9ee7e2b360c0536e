"""`qwen3-tts say`: synthesise one text and print its latency figures."""

import argparse
import codecs
import contextlib
import itertools
import json
import os
import sys
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from tritonclient.grpc import service_pb2

from qwen3_tts_client import long_text, options
from qwen3_tts_client.analysis import metrics
from qwen3_tts_client.analysis.playback import MS, NS
from qwen3_tts_client.errors import ClientError, ExitCode, SpeechError, reported
from qwen3_tts_client.pieces import Sequence
from qwen3_tts_client.protocol import SAMPLE_RATE, SpeechRequest, encode, merged
from qwen3_tts_client.records.timeline import Timeline, TimelineRecorder
from qwen3_tts_client.server import Server
from qwen3_tts_client.sink import FadingSink, check_output, open_sink
from qwen3_tts_client.stream import Responses
from qwen3_tts_client.subtitles import check_subtitles, subtitles
from qwen3_tts_client.sync_stream import speak

Word = dict[str, Any]
_EXIT_CODES = {"timeout": ExitCode.TIMEOUT, "disconnected": ExitCode.SERVER}


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("words", nargs="*", metavar="TEXT", help="text to speak; - streams standard input")
    parser.add_argument("--text", help="TEXT as a flag")
    parser.add_argument("--file", type=Path, metavar="FILE.txt", help="a long text; an interrupted run is continued")
    target = parser.add_mutually_exclusive_group()
    target.add_argument("--output", default="speech.wav", metavar="FILE.wav", help="- for raw 16-bit PCM on stdout")
    target.add_argument("--play", action="store_true", help="play on the sound device instead")
    parser.add_argument("--word-times", metavar="FILE.jsonl", help="writes when each word begins and ends")
    parser.add_argument("--subtitles", metavar="FILE.srt|FILE.vtt", help="writes subtitles as SubRip or WebVTT")
    options.add_playback_options(parser)
    options.add_server_options(parser)
    options.add_request_options(parser)


def run(args: argparse.Namespace) -> ExitCode:
    check_output(args.output)
    if args.subtitles:
        check_subtitles(args.subtitles)
    request = options.speech_request(args, _text(args))
    if args.word_times or args.subtitles:
        request = replace(request, word_times=True)
    with Server(args.url or "localhost:8001", args.model_name) as server:
        server.check_ready()
        if args.file:
            text = long_text.read_text(args.file)
            _write_words(args, *long_text.say_file(args, request, text, server), text)
            return ExitCode.OK
        words: list[Word] = []
        sent: list[str] = []
        timeline = _speak(server, args, _messages(request, args.model_name, sent), words)
    if timeline.samples:
        print(_figures(timeline, args.prebuffer_ms), file=sys.stderr)
    _write_words(args, merged(words), sum(timeline.samples), "".join(sent))
    if timeline.error:
        raise ClientError(timeline.error, _EXIT_CODES.get(timeline.outcome, ExitCode.REQUEST))
    return ExitCode.OK


def _write_words(args: argparse.Namespace, words: list[Word], samples: int, text: str) -> None:
    if args.word_times:
        _write(args.word_times, "".join(f"{json.dumps(word, ensure_ascii=False)}\n" for word in words))
    if args.subtitles:
        _write(args.subtitles, subtitles(args.subtitles, words, text, samples))


def _text(args: argparse.Namespace) -> str:
    words = " ".join(args.words)
    if args.text and words:
        raise ClientError(f"two texts, {words!r} and --text {args.text!r}: give one")
    text: str = args.text or words
    if args.file:
        if text:
            raise ClientError(f"two texts, {text!r} and --file {args.file}: give one")
        if args.play or args.output == "-":
            raise ClientError("--file: name a WAV file with --output, by which an interrupted run is continued")
        return text
    if not text:
        raise ClientError("no text: pass one, or - to read standard input")
    return text


def _messages(request: SpeechRequest, model_name: str, text: list[str]) -> Iterable[service_pb2.ModelInferRequest]:
    """Adds the text to `text` as it is sent."""
    if request.text == "-":
        return streamed(request, model_name, _kept(read_pieces(sys.stdin.fileno()), text))
    text.append(request.text)
    return [encode(request, model_name)]


def streamed(request: SpeechRequest, model_name: str, pieces: Iterable[str]) -> Iterator[service_pb2.ModelInferRequest]:
    """One request per text piece, all of one sequence; a final request without text ends it."""
    sequence = Sequence(request, model_name)
    yield from map(sequence.add, pieces)
    yield sequence.end()


def _kept(pieces: Iterable[str], text: list[str]) -> Iterator[str]:
    for piece in pieces:
        text.append(piece)
        yield piece


def read_pieces(file: int) -> Iterator[str]:
    """Yields the text of a pipe or terminal as it arrives."""
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    while data := os.read(file, 1 << 16):
        if text := decoder.decode(data):
            yield text


def _speak(
    server: Server,
    args: argparse.Namespace,
    messages: Iterable[service_pb2.ModelInferRequest],
    words: list[Word],
) -> Timeline:
    """Adds what the responses tell about words to `words`."""
    recorder = TimelineRecorder()
    with contextlib.ExitStack() as stack:
        messages = iter(messages)
        # Standard input may block before its first words: no timeout runs meanwhile.
        first = next(messages)
        stamped = _mark_first_sent(itertools.chain([first], messages), recorder)
        responses = Responses()
        utterance = speak(server.stub, stamped, options.timeouts(args), responses)
        stream = stack.enter_context(contextlib.closing(utterance))
        sink = None
        try:
            for arrival_ns, chunk in stream:
                recorder.add(arrival_ns, chunk)
                words += chunk.words
                if sink is None:
                    rate = chunk.sample_rate or SAMPLE_RATE
                    sink = FadingSink(open_sink(args.output, args.play, rate), rate)
                    stack.callback(sink.close)
                sink.write(chunk.pcm)
            recorder.finish(end=responses.end)
            if responses.end:
                words += responses.end.words
            if sink:
                sink.finish()
        except SpeechError as error:
            recorder.finish(error)
    return recorder.stop()


def _write(path: str, content: str) -> None:
    with reported(path):
        Path(path).write_text(content, encoding="utf-8")


def _mark_first_sent(
    messages: Iterable[service_pb2.ModelInferRequest], recorder: TimelineRecorder
) -> Iterator[service_pb2.ModelInferRequest]:
    """Marks the request as sent when its first message is taken, since that may wait for text."""
    for index, message in enumerate(messages):
        if index == 0:
            recorder.mark_sent()
        yield message


def _figures(timeline: Timeline, prebuffer_ms: float) -> str:
    playback = metrics.played(timeline, round(prebuffer_ms * MS))
    withheld_ns = metrics.withheld_ns(timeline)
    return (
        f"audio {metrics.audio_ns(timeline) / NS:.2f} s · TTFA {_ms(metrics.ttfa_ns(timeline))} · "
        f"audible TTFA {_ms(metrics.audible_ttfa_ns(timeline, playback))} · "
        f"RTF {metrics.rtf(timeline):.3f} · "
        f"underruns {playback.underruns} ({_ms(playback.stalled_ns)} total, largest {_ms(playback.largest_stall_ns)})"
        + (f" · leading silence not sent {_ms(withheld_ns)}" if withheld_ns else "")
        + (f" · ended by {timeline.finish_reason}" if timeline.finish_reason not in (None, "stop") else "")
    )


def _ms(value_ns: int | None) -> str:
    return "-" if value_ns is None else f"{value_ns / MS:.1f} ms"
