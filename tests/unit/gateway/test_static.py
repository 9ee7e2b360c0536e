"""The files of the page: types, headers, and nothing from elsewhere."""

import re
from pathlib import Path

import httpx
import pytest

from qwen3_tts_gateway.access import KEYS_VARIABLE, new_key
from qwen3_tts_gateway.static import FOLDER
from tests.fakes.gateway import RunningGateway
from tests.fakes.stub_server import StubServer

FILES = sorted(FOLDER.iterdir())
MAX_LINES = 1000
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
NAMESPACE = "http://www.w3.org/2000/svg"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_is_served_with_its_type_and_a_strict_policy(client: httpx.Client, path: Path) -> None:
    page = client.get("/" if path.name == "index.html" else f"/page/{path.name}")
    assert page.content == path.read_bytes()
    assert page.headers["content-type"].partition(";")[0] == TYPES[path.suffix]
    assert page.headers["x-content-type-options"] == "nosniff"
    policy = dict(directive.split(" ", 1) for directive in page.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert not re.search(r"unsafe|https?:|\*", page.headers["content-security-policy"])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_names_no_other_host(path: Path) -> None:
    assert not re.findall(r"""(?:https?:|wss?:|["'(=])//[\w.]+""", path.read_text().replace(NAMESPACE, ""))


def test_everything_that_the_files_name_exists() -> None:
    text = "\n".join(path.read_text() for path in FILES)
    names = {path.name for path in FILES}
    assert set(re.findall(r"""["'(](?:\./|page/)?([\w-]+\.(?:js|css|svg))["')]""", text)) <= names
    ids = re.findall(r'\bid="([\w-]+)"', (FOLDER / "index.html").read_text())
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'\$\("([\w-]+)"\)', text)) <= set(ids)


def test_the_page_is_small() -> None:
    assert sum(len(path.read_text().splitlines()) for path in FILES) <= MAX_LINES


def test_a_current_copy_is_not_sent_again(client: httpx.Client) -> None:
    etag = client.get("/page/app.js").headers["etag"]
    again = client.get("/page/app.js", headers={"if-none-match": etag})
    assert (again.status_code, again.content) == (304, b"")


def test_an_unknown_file_is_a_404(client: httpx.Client) -> None:
    for path in ("/app.js", "/page/static.py", "/page/", "/page/..%2Fstatic.py"):
        assert client.get(path).status_code == 404


def test_the_page_needs_no_key(stub: StubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEYS_VARIABLE, new_key("anna")[1])
    with RunningGateway(stub.url) as gateway:
        assert httpx.get(gateway.url).status_code == 200
        assert httpx.get(f"{gateway.url}/v1/models").status_code == 401


def test_what_the_page_asks_for(client: httpx.Client) -> None:
    roots = {model["id"]: model["root"] for model in client.get("/v1/models").json()["data"]}
    assert (roots["qwen3_tts"], roots["tts-1"]) == ("qwen3_tts", "qwen3_tts")
    listed = client.get("/v1/audio/voices").json()
    assert listed["task_type"] == "CustomVoice"
    assert listed["cloning"] == "on"
    assert "english" in listed["languages"]
