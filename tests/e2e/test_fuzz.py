"""Fuzzes request tensors and audio: every request ends, no stream leaks and the server keeps serving."""

import struct
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from qwen3_tts_client.protocol import AudioChunk, End, Error, VoiceList, decode
from tests.conftest import CheckpointOf
from tests.e2e.serving import Caller, eventually, repository_with, serve
from tests.oracle.test_encoders import recording

pytestmark = pytest.mark.long

# Concurrent requests in an example; number of examples.
CONCURRENCY, EXAMPLES = 10, 210
TIMEOUT = 60.0
MAX_FRAMES = 6
WIDTHS = {"FP32": "f", "INT32": "i", "INT64": "q", "BOOL": "?"}
Tensor = tuple[str, list[int], bytes]

texts = st.one_of(
    st.text(max_size=40),
    st.sampled_from(["Hello.", "你好。", "", " ", "\0", "<|im_end|>", "<tts_pad>", "a" * 5000, "é" * 100, "\n\nx"]),
)
names = st.sampled_from(["a", "b", "c", "/", "..", "x" * 70, ""])


@st.composite
def strings(draw: st.DrawFn, values: st.SearchStrategy[str]) -> Tensor:
    content = draw(st.one_of(values.map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=8)))
    return "BYTES", [1], struct.pack("<I", len(content)) + content


@st.composite
def numbers(draw: st.DrawFn, datatype: str, usual: st.SearchStrategy[Any]) -> Tensor:
    arbitrary = {
        "FP32": st.floats(width=32),
        "INT32": st.integers(-(2**31), 2**31 - 1),
        "INT64": st.integers(-(2**63), 2**63 - 1),
        "BOOL": st.booleans(),
    }
    value = draw(st.one_of(usual, usual, usual, arbitrary[datatype]))
    return datatype, [1], struct.pack(f"<{WIDTHS[datatype]}", value)


@st.composite
def recordings(draw: st.DrawFn) -> Tensor:
    """Audio of up to two seconds, valid, too short, too quiet or with one extreme sample."""
    count = draw(st.one_of(st.integers(2000, 48_000), st.integers(2000, 24_000), st.integers(0, 3000)))
    seed = draw(st.integers(0, 20))  # few, so that some references repeat
    audio = np.random.default_rng(seed).normal(
        0, draw(st.sampled_from([0.1, 0.12, 0.15, 0.2, 0.25, 0.3, 0.35, 1e-5, 0.0])), count
    )
    audio = audio.astype(np.float32)
    if count and draw(st.integers(0, 3)) == 0:
        odd = draw(st.sampled_from([np.nan, np.inf, -np.inf, 1.0, -1.0, 1.9, 3e38, 1e-40]))
        audio[draw(st.integers(0, count - 1))] = odd
    return "FP32", [count], audio.tobytes()


FIELDS: dict[str, st.SearchStrategy[Tensor]] = {
    "text": strings(texts),
    "language": strings(st.sampled_from(["auto", "english", "English", "klingon", "beijing_dialect", ""])),
    "speaker": strings(st.sampled_from(["ryan", "", "nobody"])),
    "instruct": strings(texts),
    "voice": strings(names),
    "ref_audio": recordings(),
    "ref_sample_rate": numbers("INT32", st.sampled_from([8000, 16000, 24000, 44100, 48000, 192000])),
    "ref_text": strings(texts),
    "x_vector_only": numbers("BOOL", st.booleans()),
    "operation": strings(st.sampled_from(["speak", "register_voice", "list_voices", "delete_voice", "sing"])),
    "temperature": numbers("FP32", st.floats(0, 2, width=32)),
    "top_k": numbers("INT32", st.integers(0, 3000)),
    "top_p": numbers("FP32", st.floats(0.125, 1, width=32)),
    "repetition_penalty": numbers("FP32", st.floats(0.5, 2, width=32)),
    "max_frames": numbers("INT32", st.integers(1, MAX_FRAMES)),
    "seed": numbers("INT64", st.integers(0, 5)),
}
VALID: dict[str, Tensor] = {
    "text": ("BYTES", [1], struct.pack("<I", 5) + b"Hello"),
    "ref_sample_rate": ("INT32", [1], struct.pack("<i", 24000)),
    "ref_text": ("BYTES", [1], struct.pack("<I", 3) + b"Hey"),
    "max_frames": ("INT32", [1], struct.pack("<i", 2)),
}


@st.composite
def requests(draw: st.DrawFn) -> dict[str, Tensor]:
    """Arbitrary fields, a clone with arbitrary audio, or a voice operation with or without audio."""
    kind = draw(st.sampled_from(["anything", "clone", "clone", "operation", "operation"]))
    names = draw(st.sets(st.sampled_from(sorted(FIELDS)), max_size=len(FIELDS) if kind == "anything" else 2))
    tensors = {name: draw(FIELDS[name]) for name in sorted(names)}
    if kind != "anything" and draw(st.booleans()):
        tensors = {}
    if kind == "operation":
        tensors |= {"operation": draw(FIELDS["operation"]), "voice": draw(FIELDS["voice"])}
    if kind == "clone" or (kind == "operation" and draw(st.booleans())):
        tensors = VALID | {"ref_audio": draw(FIELDS["ref_audio"])} | tensors
    if tensors and draw(st.integers(0, 9)) == 0:
        name = draw(st.sampled_from(sorted(tensors)))
        tensors[name] = malformed(tensors[name], draw(st.sampled_from(["shape", "type", "short"])))
    return tensors


def malformed(tensor: Tensor, how: str) -> Tensor:
    datatype, shape, content = tensor
    if how == "shape":
        return datatype, [*shape, 2], content + content
    if how == "type":
        return ("INT64" if datatype != "INT64" else "FP32"), shape, content
    return datatype, shape, content[:-1]


@pytest.fixture(scope="module")
def caller(
    tiny_base_models: Path, checkpoint_of: CheckpointOf, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Caller]:
    folder = tmp_path_factory.mktemp("fuzz")
    repository = repository_with(tiny_base_models, folder)
    environment = {
        "QWEN3_TTS_CHECKPOINT": str(checkpoint_of("base")),
        "QWEN3_TTS_VOICES_FOLDER": str(folder / "voices"),
        "QWEN3_TTS_MAX_FRAMES_LIMIT": str(MAX_FRAMES),
        "QWEN3_TTS_VOICE_CACHE_MIB": "1",
    }
    # Triton 2.51 may keep a reference to the model after a disconnect, so the exit timeout is short.
    with serve(repository, folder / "server", environment) as server, Caller(server) as caller:
        yield caller


def send(caller: Caller, tensors: dict[str, Tensor], patience: int) -> str:
    """Returns the outcome of a request; the caller disconnects after `patience` responses."""
    message = service_pb2.ModelInferRequest(model_name="qwen3_tts")
    message.parameters["triton_enable_empty_final_response"].bool_param = True
    for name, (datatype, shape, content) in tensors.items():
        message.inputs.add(name=name, datatype=datatype, shape=shape)
        message.raw_input_contents.append(content)
    call = caller.stub.ModelStreamInfer(iter([message]), timeout=TIMEOUT)
    outcome = ""
    try:
        if patience == 0:
            return "disconnected"
        for count, response in enumerate(call, 1):
            for event in decode(response):
                assert outcome in ("", "spoke", "listed"), f"{event} after {outcome}"
                match event:
                    case AudioChunk(pcm):
                        assert 0 < len(pcm) <= MAX_FRAMES * 1920
                        outcome = "spoke"
                    case VoiceList():
                        outcome = "listed"
                    case Error(message=text):
                        assert "internal error" not in text, text
                        outcome = "refused" if "INVALID_ARG" in text else f"refused by Triton: {text}"
                    case End():
                        assert outcome, "FINAL without a response before it"
                        return outcome
            if count == patience:
                return "disconnected"
    except grpc.RpcError as error:
        # Triton's front end closes the stream on a message that it cannot parse.
        if error.code() != grpc.StatusCode.INVALID_ARGUMENT:
            raise
        return "refused by Triton: closed"
    finally:
        call.cancel()
    assert outcome.startswith("refused"), f"the stream closed after {outcome!r}"
    return outcome


def test_2000_random_requests_end_and_leave_the_server_working(caller: Caller) -> None:
    reference = {"ref_audio": recording(24000, 30_000), "ref_sample_rate": 24000, "ref_text": "Hey."}
    request: dict[str, Any] = {"text": "Hello.", "speaker": None, "temperature": 0.0, "max_frames": MAX_FRAMES}
    request |= reference
    before = caller.speak(**request)
    assert before.error is None
    outcomes: Counter[str] = Counter()

    with ThreadPoolExecutor(CONCURRENCY) as pool:

        @settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
        @given(
            st.lists(
                st.tuples(requests(), st.sampled_from([99, 99, 99, 99, 99, 99, 1, 0])),
                min_size=CONCURRENCY,
                max_size=CONCURRENCY,
            )
        )
        def fuzz(batch: list[tuple[dict[str, Tensor], int]]) -> None:
            for outcome in pool.map(lambda pair: send(caller, *pair), batch):
                outcomes[outcome.split(":")[0]] += 1

        fuzz()
    print(outcomes)
    assert outcomes.total() >= 2000
    assert set(outcomes) == {"spoke", "listed", "refused", "refused by Triton", "disconnected"}
    assert min(outcomes.values()) >= 5, "each outcome occurs several times"
    eventually(lambda: caller.metric("qwen3_tts_requests_running") == 0)
    assert caller.metric("qwen3_tts_requests_waiting") == 0
    assert caller.is_ready()
    after = caller.speak(**request)
    np.testing.assert_allclose(after.samples, before.samples, atol=4)
