"""Voices and models, listed in OpenAI's form and in vllm-omni's."""

import asyncio
import base64
import io
import wave
from collections.abc import Iterator
from typing import Any

import aiohttp
import httpx
import numpy as np
import openai
import pytest

from qwen3_tts_gateway.access import KEYS_VARIABLE, new_key
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import StubServer, input_text
from tests.unit.gateway.conftest import script

PATH = "/v1/audio/voices"


@pytest.fixture
def base() -> Iterator[StubServer]:
    with StubServer(frames=1, voices={}) as server:
        yield server


@pytest.fixture
def cloning(base: StubServer) -> Iterator[RunningGateway]:
    with RunningGateway(base.url, default_voice="anna") as gateway:
        yield gateway


def recording(rate: int = 16_000) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, rate, 0, "NONE", ""))
        writer.writeframes(np.random.default_rng(0).integers(-3000, 3000, rate, np.int16).tobytes())
    return file.getvalue()


def tensors(request: Any) -> set[str]:
    return {tensor.name for tensor in request.inputs}


def test_speakers_of_a_custom_voice_checkpoint_are_listed(client: httpx.Client) -> None:
    listed = client.get(PATH).json()
    assert "ryan" in listed["voices"]
    assert {"id": "ryan", "object": "audio.voice"}.items() <= listed["data"][4].items()
    assert listed["uploaded_voices"] == []


@pytest.mark.parametrize(
    ("voice", "speaker"),
    [({}, "MyVoice"), ({"voice": "alloy"}, "MyVoice"), ({"voice": "second"}, "second"), ({"voice": "bob"}, "bob")],
)
def test_a_fine_tuned_checkpoint_has_its_own_speakers(voice: dict[str, str], speaker: str) -> None:
    """Its first one replaces speakers of the released checkpoints that OpenAI's names and the default stand for."""
    with StubServer(frames=1) as server:
        server.servicer.speakers = ("MyVoice", "second")
        with RunningGateway(server.url) as gateway, httpx.Client(base_url=gateway.url) as client:
            assert client.get(PATH).json()["voices"] == ["MyVoice", "second"]
            assert client.post("/v1/audio/speech", json={"input": "Hello."} | voice).status_code == 200
        assert input_text(server.servicer.received[-1], "speaker") == speaker


def listed_by_open_webui(gateway: RunningGateway) -> tuple[list[str], dict[str, str]]:
    """Ids of the models and names of the voices by id, read as by routers/audio of Open WebUI 0.12.4, without a key."""

    async def ask() -> tuple[list[str], dict[str, str]]:
        async with aiohttp.ClientSession(f"{gateway.url}/v1/") as session:
            async with session.get("audio/models") as response:
                models = (await response.json())["models"]
            async with session.get("audio/voices") as response:
                response.raise_for_status()
                voices = (await response.json())["voices"]
        return [model["id"] for model in models], {voice["id"]: voice["name"] for voice in voices}

    return asyncio.run(ask())


def test_open_webui_lists_models_and_voices_without_a_key(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, new_key("anna")[1])
    with RunningGateway(stub.url, public_lists=True) as gateway:
        models, voices = listed_by_open_webui(gateway)
        assert httpx.get(f"{gateway.url}/v1/models/tts-1").status_code == 200
        assert httpx.post(f"{gateway.url}/v1/audio/speech", json={"input": "Hello."}).status_code == 401
        assert (
            httpx.post(gateway.url + PATH).status_code == httpx.delete(f"{gateway.url}{PATH}/anna").status_code == 401
        )
    assert "tts-1" in models
    assert voices["ryan"] == "ryan"


def test_names_of_voices_are_strings_for_vllm_omnis_clients(client: httpx.Client) -> None:
    assert all(isinstance(name, str) for name in client.get(PATH).json()["voices"])


def test_voices_are_objects_at_their_short_path(client: httpx.Client) -> None:
    assert {"id": "ryan", "name": "ryan"}.items() <= client.get("/v1/voices").json()["voices"][4].items()


def test_a_voice_is_registered_spoken_and_deleted_by_the_openai_sdk(cloning: RunningGateway, base: StubServer) -> None:
    with openai.OpenAI(base_url=f"{cloning.url}/v1", api_key="none", max_retries=0) as client:
        voice = client.audio.voices.create(name="anna", consent="cons_1", audio_sample=("a.wav", recording()))
        assert (voice.id, voice.object, voice.type) == ("anna", "audio.voice", "audio_sample")
        registered = base.servicer.received[-1]
        assert tensors(registered) >= {"voice", "ref_audio", "ref_sample_rate", "x_vector_only"}
        assert httpx.get(cloning.url + PATH).json()["voices"] == ["anna"]
        client.audio.speech.create(model="tts-1", voice={"id": "anna"}, input="Hello.")
        assert input_text(base.servicer.received[-1], "voice") == "anna"
        assert client.audio.voices.delete("anna").deleted
        with pytest.raises(openai.NotFoundError):
            client.audio.voices.delete("anna")


def test_a_checkpoint_without_cloning_refuses_the_model(client: httpx.Client) -> None:
    response = client.post(PATH, data={"name": "anna"}, files={"audio_sample": recording()})
    assert (response.status_code, response.json()["error"]["param"]) == (400, "model")


def test_an_unknown_voice_has_one_code(cloning: RunningGateway) -> None:
    text = script(error="INVALID_ARG: voice: 'bert': no voice is registered under this name")
    responses = (
        httpx.post(f"{cloning.url}/v1/audio/speech", json={"input": text, "voice": "bert"}),
        httpx.delete(f"{cloning.url}{PATH}/bert"),
    )
    for response in responses:
        assert (response.status_code, response.json()["error"]["code"]) == (404, "voice_not_found")


def test_a_transcript_registers_a_voice_in_context(cloning: RunningGateway, base: StubServer) -> None:
    form = {"name": "anna", "consent": "cons_1", "ref_text": "What is said."}
    answer = httpx.post(cloning.url + PATH, data=form, files={"audio_sample": recording()}).json()
    assert (answer["success"], answer["voice"]["name"]) == (True, "anna")
    assert input_text(base.servicer.received[-1], "ref_text") == "What is said."
    assert "x_vector_only" not in tensors(base.servicer.received[-1])


@pytest.mark.parametrize(
    ("form", "files", "param"),
    [
        ({}, {"audio_sample": b""}, "name"),
        ({"name": "anna"}, {"other": b""}, "audio_sample"),
        ({"name": "anna"}, {"audio_sample": b"no recording"}, "audio_sample"),
        ({"name": "bert"}, {"audio_sample": recording()}, "name"),
    ],
)
def test_a_wrong_form_names_the_field(
    cloning: RunningGateway, base: StubServer, form: dict[str, str], files: dict[str, bytes], param: str
) -> None:
    assert base.servicer.voices is not None
    base.servicer.voices["bert"] = {}
    response = httpx.post(cloning.url + PATH, data=form, files=files)
    assert (response.status_code, response.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("content", [b"", b"{}", b"--x\r\n"])
def test_a_body_that_is_no_form_is_refused(cloning: RunningGateway, content: bytes) -> None:
    headers = {"content-type": "multipart/form-data; boundary=x"}
    assert httpx.post(cloning.url + PATH, content=content, headers=headers).status_code == 400


def test_a_reference_of_a_request_becomes_tensors(cloning: RunningGateway, base: StubServer) -> None:
    reference = "data:audio/wav;base64," + base64.b64encode(recording(22_050)).decode()
    body = {"input": "Hello.", "ref_audio": reference, "ref_text": "What is said.", "voice": "alloy"}
    assert httpx.post(cloning.url + "/v1/audio/speech", json=body).status_code == 200
    request = base.servicer.received[-1]
    assert tensors(request) == {"text", "ref_audio", "ref_sample_rate", "ref_text"}
    raw = dict(zip([tensor.name for tensor in request.inputs], request.raw_input_contents, strict=True))
    assert int.from_bytes(raw["ref_sample_rate"], "little") == 22_050
    samples = np.frombuffer(raw["ref_audio"], "<f4")
    assert (len(samples), 0.05 < np.abs(samples).max() < 0.1) == (22_050, True)


def test_models_are_listed_with_openais_names(client: httpx.Client) -> None:
    names = [model["id"] for model in client.get("/v1/models").json()["data"]]
    assert names == ["qwen3_tts", "tts-1", "tts-1-hd", "gpt-4o-mini-tts"]
    assert client.get("/v1/models/tts-1").json()["object"] == "model"
    assert client.get("/v1/models/other").status_code == 404


@pytest.mark.parametrize(
    "name",
    [
        "Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice",
        "/models/Qwen3-TTS-12Hz-0.6B-CustomVoice",
        "gpt-4o-mini-tts-2025-03-20",
        "tts-1-1106",
        "tts-1-hd-1106",
    ],
)
def test_a_checkpoint_or_a_dated_name_is_a_model(client: httpx.Client, name: str) -> None:
    body = {"model": name, "input": "Hello.", "response_format": "pcm"}
    assert client.post("/v1/audio/speech", json=body).status_code == 200
    described = client.get(f"/v1/models/{name}").json()
    assert (described["id"], described["root"]) == (name, "qwen3_tts")
    assert client.get(PATH, params={"model": name}).status_code == 200


@pytest.mark.parametrize("name", ["Qwen/Qwen3-TTS-12Hz-1.7B-Base", "whisper-1", "tts-1-11061", "tts-2-1106", ""])
def test_a_checkpoint_for_another_task_is_unknown(client: httpx.Client, name: str) -> None:
    response = client.post("/v1/audio/speech", json={"model": name, "input": "Hello."})
    assert (response.status_code, response.json()["error"]["code"]) == (404, "model_not_found")


def test_the_name_of_a_checkpoint_chooses_the_model_for_its_task(cloning: RunningGateway) -> None:
    names = [f"Qwen/Qwen3-TTS-12Hz-1.7B-{task}" for task in ("Base", "CustomVoice")]
    assert [httpx.get(f"{cloning.url}/v1/models/{name}").status_code for name in names] == [200, 404]
