"""Keys, limits, origins, cloning, and what the log holds."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from qwen3_tts_client.errors import ClientError
from qwen3_tts_gateway.access import KEYS_VARIABLE, Access, new_key
from qwen3_tts_gateway.config import Settings
from qwen3_tts_gateway.log import JsonFormatter
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import StubServer
from tests.unit.gateway.conftest import script, wait_for
from tests.unit.gateway.test_speech import PATH, post

SECRET = "A secret text."


@pytest.fixture(scope="module")
def key() -> tuple[str, str]:
    return new_key("anna")


@pytest.fixture(scope="module")
def keyed(stub: StubServer, key: tuple[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    file = tmp_path_factory.mktemp("keys") / "keys"
    file.write_text(f"# people\n\n{key[1]} streams=1 characters=4000\n")
    with RunningGateway(stub.url, keys_file=file) as gateway:
        yield gateway


def speak(gateway: RunningGateway, key: str | None, text: str = "hi") -> httpx.Response:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return httpx.post(gateway.url + PATH, json={"input": text, "response_format": "pcm"}, headers=headers)


def test_a_key_is_required(keyed: RunningGateway, key: tuple[str, str]) -> None:
    assert speak(keyed, key[0]).status_code == 200
    for wrong in (None, "", "sk-wrong", key[1].split()[1]):
        response = speak(keyed, wrong)
        assert (response.status_code, response.json()["error"]["code"]) == (401, "invalid_api_key")
    for path in ("/v1/models", "/v1/models/tts-1", "/v1/audio/models", "/v1/audio/voices"):
        assert httpx.get(keyed.url + path).status_code == 401
    assert httpx.post(keyed.url + "/v1/audio/voices").status_code == 401


def test_only_the_hash_of_a_key_is_kept(key: tuple[str, str]) -> None:
    assert key[0] not in key[1]
    assert len(key[0]) > 40


def test_streams_of_a_key_are_limited(keyed: RunningGateway, key: tuple[str, str]) -> None:
    body = {"input": script(chunks=[[0, 1]], hang=True), "response_format": "pcm"}
    with post(keyed, body, authorization=f"Bearer {key[0]}") as running:
        assert running.recv(100)
        refused = speak(keyed, key[0])
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    wait_for(lambda: speak(keyed, key[0]).status_code == 200)


def test_characters_of_a_key_are_limited(stub: StubServer, key: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{key[1]} characters=10")
    with RunningGateway(stub.url, keys_file=tmp_path / "keys") as gateway:
        assert [speak(gateway, key[0], "hello").status_code for _ in range(3)] == [200, 200, 429]
        assert int(speak(gateway, key[0]).headers["retry-after"]) == 60


def test_keys_come_from_the_environment(
    stub: StubServer, key: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, f"{key[1]},{new_key('bert')[1]}")
    with RunningGateway(stub.url) as gateway:
        assert (speak(gateway, key[0]).status_code, speak(gateway, "x").status_code) == (200, 401)


@pytest.mark.parametrize(
    ("settings", "keys", "message"),
    [
        ({"host": "0.0.0.0"}, None, "is not local: set keys_file or"),
        ({"host": "::"}, None, "is not local"),
        ({}, "anna", "expected NAME SHA256"),
        ({}, f"anna {'0' * 63}", "expected NAME SHA256"),
        ({}, f"anna {'0' * 64} streams=0", "expected NAME SHA256"),
        ({"keys_file": "/none"}, None, "keys_file /none: No such file"),
        ({"limits_storage": "nothing://"}, None, "setting limits_storage: "),
        ({"limits_storage": "memory://"}, None, "setting limits_storage: expected async"),
    ],
)
def test_settings_that_leave_it_open_or_broken_are_refused(
    settings: dict[str, Any], keys: str | None, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if keys:
        monkeypatch.setenv(KEYS_VARIABLE, keys)
    with pytest.raises(ClientError, match=message) as raised:
        Access(Settings(**settings))
    assert "\n" not in str(raised.value)


def test_no_auth_opens_other_addresses() -> None:
    Access(Settings(host="0.0.0.0", auth=False))


@pytest.mark.parametrize(("origin", "status"), [("https://evil.example", 403), ("null", 403), (None, 200)])
def test_pages_of_other_sites_are_refused(gateway: RunningGateway, origin: str | None, status: int) -> None:
    headers = {"Origin": origin} if origin else {}
    assert httpx.get(gateway.url + "/v1/models", headers=headers).status_code == status
    assert httpx.get(gateway.url + "/v1/models", headers={"Origin": gateway.url}).status_code == 200


SITE = "https://speech.example"
ONLY_HTTP = "http://nas:8088"


@pytest.mark.parametrize(
    ("proxies", "headers", "status"),
    [
        ((), {"Origin": SITE, "Host": "speech.example"}, 200),
        ((), {"Origin": SITE, "Sec-Fetch-Site": "same-origin"}, 200),
        ((), {"Origin": SITE, "Sec-Fetch-Site": "same-site"}, 403),
        ((), {"Origin": SITE, "X-Forwarded-Host": "speech.example"}, 403),
        (("10.0.0.0/8",), {"Origin": SITE, "X-Forwarded-Host": "speech.example"}, 403),
        (("10.0.0.0/8", "127.0.0.1"), {"Origin": SITE, "X-Forwarded-Host": "speech.example"}, 200),
        (("127.0.0.0/8",), {"Origin": SITE, "X-Forwarded-Host": "inner, speech.example"}, 200),
        (("127.0.0.1",), {"Origin": SITE, "X-Forwarded-Host": "other.example", "Host": "speech.example"}, 200),
        (("127.0.0.1",), {"Origin": SITE, "X-Forwarded-Host": "other.example"}, 403),
        (("127.0.0.1",), {"Origin": ONLY_HTTP, "Host": "nas"}, 200),
        (("127.0.0.1",), {"Origin": ONLY_HTTP, "Host": "nas:9000"}, 403),
        (("127.0.0.1",), {"Origin": "null"}, 403),
        ((), {"Origin": "http://["}, 403),
    ],
)
def test_pages_behind_a_proxy(stub: StubServer, proxies: tuple[str, ...], headers: dict[str, str], status: int) -> None:
    with RunningGateway(stub.url, trusted_proxies=proxies) as gateway:
        assert httpx.get(gateway.url + "/v1/models", headers=headers).status_code == status


def test_cors_is_off_unless_configured(stub: StubServer) -> None:
    preflight = {"Origin": "https://page.example", "Access-Control-Request-Method": "POST"}
    with RunningGateway(stub.url, cors_origins=("https://page.example",)) as gateway:
        allowed = httpx.options(gateway.url + PATH, headers=preflight)
        assert allowed.headers["access-control-allow-origin"] == "https://page.example"
        assert httpx.get(gateway.url + "/v1/models", headers={"Origin": "https://other.example"}).status_code == 403


@pytest.mark.parametrize(
    ("cloning", "consent", "status"), [("off", True, 403), ("consent", None, 403), ("consent", True, 400)]
)
def test_cloning_is_restricted(stub: StubServer, cloning: str, consent: bool | None, status: int) -> None:
    """400: the reference of this request is no recording."""
    with RunningGateway(stub.url, cloning=cloning) as gateway:
        body = {"input": "hi", "ref_audio": "AAAA", "consent": consent}
        assert httpx.post(gateway.url + PATH, json=body).status_code == status
        form = {"name": "anna"} | ({"consent": "cons_1"} if consent else {})
        files = {"audio_sample": b"no recording"}
        assert httpx.post(gateway.url + "/v1/audio/voices", data=form, files=files).status_code == status


@pytest.mark.parametrize("fields", [{}, {"stream_format": "sse"}])
def test_the_log_has_what_the_client_is_not_told(
    stub: StubServer, fields: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    failing = {"input": script(chunks=[[0, 1]] if fields else [], error="INTERNAL: the codec failed: RuntimeError")}
    with RunningGateway(stub.url) as gateway, caplog.at_level(logging.INFO, "qwen3_tts_gateway.access"):
        assert "RuntimeError" not in httpx.post(gateway.url + PATH, json=failing | fields).text
        wait_for(lambda: bool(caplog.records))
    logged = [vars(record)["fields"] for record in caplog.records if record.name == "qwen3_tts_gateway.access"]
    assert [line["error"] for line in logged] == ["INTERNAL: the codec failed: RuntimeError"]


@pytest.mark.parametrize("log_text", [False, True])
@pytest.mark.parametrize(("path", "form", "status"), [(PATH, "mp3", 200), (f"{PATH}/batch", "wav", 0)])
def test_texts_and_voices_are_logged_only_when_asked(
    stub: StubServer, path: str, form: str, status: int, log_text: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    logger = logging.getLogger("qwen3_tts_gateway")
    monkeypatch.setattr(logger, "handlers", [handler])
    logger.setLevel(logging.INFO)
    with RunningGateway(stub.url, log_text=log_text) as gateway:
        text = {"input": SECRET}
        httpx.post(gateway.url + path, json=({"items": [text]} if "batch" in path else text) | {"voice": "alloy"})
        httpx.delete(f"{gateway.url}/v1/audio/voices/a-secret-voice")
        wait_for(lambda: "DELETE" in written.getvalue())
    assert "a-secret-voice" not in written.getvalue()
    line = json.loads(written.getvalue().splitlines()[0])
    assert (line["status"], line["outcome"], line["characters"], line["format"]) == (status, "ok", len(SECRET), form)
    assert (SECRET in written.getvalue(), "alloy" in written.getvalue()) == (log_text, log_text)
