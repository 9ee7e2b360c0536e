"""Command line options shared by several commands. Request flags are named after the tensors."""

import argparse
from pathlib import Path
from typing import Any

from qwen3_tts_client.errors import ClientError
from qwen3_tts_client.protocol import MODEL_NAME, SpeechRequest, encode
from qwen3_tts_client.stream import Timeouts
from qwen3_tts_client.wav import read_recording

_STRINGS = ("language", "speaker", "instruct", "voice", "text_policy", "lexicon")
_HELP = {
    "speaker": "CustomVoice: built-in speaker",
    "instruct": "CustomVoice: style; VoiceDesign: the voice",
    "text_policy": "Markdown, tags and emoji: verbatim, plain (left out) or refuse",
    "lexicon": 'JSON of words and their spellings, such as {"Nguyen": "win"}',
    "voice": "Base: a registered voice (qwen3-tts voices)",
}
_FLOATS = ("temperature", "top_p", "repetition_penalty")
_INTEGERS = ("top_k", "max_frames", "seed")
_FLAGS = {"trim_silence": "leading silence is not sent", "normalize_text": "numbers and units are written out"}


def add_server_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-u", "--url", help="gRPC endpoint, host:port (default localhost:8001)")
    add_model_options(parser)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("model")
    group.add_argument("-m", "--model-name", default=MODEL_NAME)
    group.add_argument("--stream-timeout", type=float, default=Timeouts.stream_s, metavar="S", help="whole stream")
    group.add_argument("--chunk-timeout", type=float, default=Timeouts.chunk_s, metavar="S", help="between responses")


def add_request_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("request", "named after the model's tensors; default: the server's")
    for name in _STRINGS:
        group.add_argument(_flag(name), help=_HELP.get(name))
    add_reference_options(group)
    for name in _FLOATS:
        group.add_argument(_flag(name), type=float, metavar="X")
    for name in _INTEGERS:
        group.add_argument(_flag(name), type=int, metavar="N")
    for name, text in _FLAGS.items():
        group.add_argument(_flag(name), action=argparse.BooleanOptionalAction, help=text)


def add_reference_options(parser: argparse._ActionsContainer) -> None:
    parser.add_argument("--ref-audio", type=Path, metavar="FILE", help="recording of a voice to clone")
    parser.add_argument("--ref-text", help="transcript of --ref-audio")
    parser.add_argument("--x-vector-only", action="store_true", help="use only its speaker embedding; no transcript")


def add_playback_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--prebuffer-ms", type=float, default=0.0, metavar="MS", help="player delay after the first chunk"
    )


def timeouts(args: argparse.Namespace) -> Timeouts:
    return Timeouts(args.stream_timeout, args.chunk_timeout)


def speech_request(args: argparse.Namespace, text: str) -> SpeechRequest:
    """Raises ClientError for an unreadable reference or a value that does not fit its tensor."""
    fields: dict[str, Any] = {name: getattr(args, name) for name in (*_STRINGS, *_FLOATS, *_INTEGERS, *_FLAGS)}
    request = SpeechRequest(text, **fields, **reference_fields(args))
    try:
        encode(request)
    except ValueError as error:
        raise ClientError(str(error)) from None
    return request


def reference_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Request fields for a recording to clone. Raises ClientError for an unreadable file."""
    fields: dict[str, Any] = {"ref_text": args.ref_text, "x_vector_only": args.x_vector_only or None}
    if args.ref_audio:
        fields["ref_audio"], fields["ref_sample_rate"] = read_recording(args.ref_audio)
    return fields


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
