"""`qwen3-tts voices`: list the voices of a checkpoint; register and delete those of a Base checkpoint."""

import argparse
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from qwen3_tts_client import options
from qwen3_tts_client.checkpoints import LIST_SPEAKERS, LIST_VOICES, task_of_refusal
from qwen3_tts_client.errors import ClientError, ExitCode, SpeechError, from_message, from_rpc
from qwen3_tts_client.protocol import Error, SpeechRequest, VoiceList, decode, encode
from qwen3_tts_client.server import Server

OPERATIONS = {"add": "register_voice", "rm": "delete_voice"}
NO_VOICES = "a VoiceDesign checkpoint has no voices; describe one: qwen3-tts say --instruct"


def add_options(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True)
    add = actions.add_parser("add", help="register a voice")
    add.add_argument("voice", metavar="NAME")
    options.add_reference_options(add)
    remove = actions.add_parser("rm", help="delete a voice")
    remove.add_argument("voice", metavar="NAME")
    for action in (add, actions.add_parser("list", help="list registered voices, or the built-in speakers"), remove):
        options.add_server_options(action)


def run(args: argparse.Namespace) -> ExitCode:
    fields: dict[str, Any] = options.reference_fields(args) if args.action == "add" else {}
    with Server(args.url or "localhost:8001", args.model_name) as server:
        server.check_ready()
        try:
            for line in _lines(server, args, fields):
                print(line)
        except SpeechError as error:
            raise ClientError(str(error), ExitCode.REQUEST) from None
    return ExitCode.OK


def _lines(server: Server, args: argparse.Namespace, reference: dict[str, Any]) -> Iterator[str]:
    """A line for each voice of the action. Raises SpeechError."""
    if args.action == "list":
        return _listed(server, args.stream_timeout)
    request = SpeechRequest("", voice=args.voice, operation=OPERATIONS[args.action], **reference)
    return map(_line, operate(server, request, args.stream_timeout))


def _listed(server: Server, timeout_s: float) -> Iterator[str]:
    try:
        return map(_line, operate(server, LIST_VOICES, timeout_s))
    except SpeechError as error:
        if task_of_refusal(error) == "VoiceDesign":
            raise ClientError(NO_VOICES, ExitCode.REQUEST) from None
    return map(_speaker_line, operate(server, LIST_SPEAKERS, timeout_s))


def operate(server: Server, request: SpeechRequest, timeout_s: float) -> list[dict[str, Any]]:
    """Returns the voices of an operation: the new one, all, or the deleted one. Raises SpeechError."""
    try:
        message = encode(request, server.model_name)
    except ValueError as error:
        raise SpeechError("invalid", str(error)) from None
    try:
        # Read to its end also after an error (see stream.CLOSING_SECONDS).
        responses = list(server.stub.ModelStreamInfer(iter([message]), timeout=timeout_s))
    except grpc.RpcError as error:
        raise from_rpc(error) from None
    return voices_of(responses)


def voices_of(responses: Iterable[service_pb2.ModelStreamInferResponse]) -> list[dict[str, Any]]:
    """The voices of all responses to an operation. Raises SpeechError."""
    voices: list[dict[str, Any]] = []
    for event in itertools.chain.from_iterable(map(decode, responses)):
        match event:
            case VoiceList(found):
                voices += found
            case Error(message):
                raise from_message(message)
    return voices


def _speaker_line(speaker: dict[str, Any]) -> str:
    return "\t".join([speaker["name"], *([speaker["dialect"]] if speaker["dialect"] else [])])


def _line(voice: dict[str, Any]) -> str:
    kind = "x-vector only" if voice["x_vector_only"] else repr(voice["ref_text"])
    return f"{voice['name']}\t{voice['reference_seconds']:.2f} s\t{voice['created']}\t{kind}"
