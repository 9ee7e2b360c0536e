"""The documents agree with the code: files, settings, tensors, metrics, messages."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

from qwen3_tts_client.__main__ import main
from qwen3_tts_engine import metrics
from scripts import configuration_page
from tests.fakes.stub_server import FRAME_SAMPLES, StubServer

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TALKER = ROOT / "model_repository" / "qwen3_tts"
# Folders that the paths of docs/architecture.md are relative to.
BASES = (ROOT, TALKER, TALKER / "1" / "qwen3_tts_engine", TALKER / "1" / "triton_adapter")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
SOURCE_FOLDERS = ("model_repository", "export", "client", "scripts", "docker", "tests")
SOURCE_SUFFIXES = {".py", ".pbtxt", ".sh", ".cu", ".cuh", ".h", ".cpp"}
SOURCES = sorted(
    path for folder in SOURCE_FOLDERS for path in (ROOT / folder).rglob("*") if path.suffix in SOURCE_SUFFIXES
)
CAPACITY = DOCS / "capacity.md"
# Pages whose double quotes are messages.
API, OPERATIONS = DOCS / "api.md", DOCS / "operations.md"
# Sources of messages; the tests contain those of Triton.
MESSAGE_FOLDERS = ("model_repository", "scripts/server", "tests/e2e")
MIN_QUOTED = 8
SERIES = {"histogram": ("", "_bucket", "_sum", "_count"), "counter": ("",), "gauge": ("",)}
DATATYPES = {"TYPE_STRING": "BYTES"}


@pytest.mark.parametrize(("page", "minimum"), [("architecture.md", 30), ("model.md", 15)])
def test_paths_on_the_page_exist(page: str, minimum: int) -> None:
    paths = re.findall(r"`([\w./-]+(?:\.py|\.pbtxt|/))`", (DOCS / page).read_text())
    assert len(paths) > minimum
    assert not [path for path in paths if not any((base / path).exists() for base in BASES)]


def test_architecture_page_names_every_folder_of_the_engine() -> None:
    text = (DOCS / "architecture.md").read_text()
    packages = [folder.parent.name for folder in (TALKER / "1" / "qwen3_tts_engine").glob("*/__init__.py")]
    assert not [package for package in packages if f"`{package}/" not in text]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_existing_files_and_headings(page: Path) -> None:
    for path, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Anchors of the headings, as GitHub derives them."""
    return {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings(page)}


def test_index_lists_every_page() -> None:
    listed = re.findall(r"^\| \[([\w./-]+)\]", (DOCS / "README.md").read_text(), re.MULTILINE)
    assert {page.name for page in DOCS.glob("*.md")} - {"README.md"} <= set(listed)


def test_sections_named_in_the_source_exist() -> None:
    """References have the form `docs/<page>.md, <Heading>`; the heading goes up to the next punctuation mark."""
    named = [
        (path, page, heading)
        for path in SOURCES
        for page, heading in re.findall(r"docs/([\w/-]+\.md), ([A-Z][\w -]*\w)", path.read_text())
    ]
    assert len(named) > 30
    missing = [
        f"{path.relative_to(ROOT)}: docs/{page}, {heading}"
        for path, page, heading in named
        if heading not in headings(DOCS / page)
    ]
    assert not missing


def headings(page: Path) -> set[str]:
    return set(re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)) if page.is_file() else set()


def test_configuration_page_is_current_and_complete() -> None:
    assert configuration_page.PAGE.read_text() == configuration_page.page(), "run python -m scripts.configuration_page"
    assert not re.findall(r"\|\s*\|$", configuration_page.page(), re.MULTILINE), "a setting has no description"


def test_documented_metrics_are_those_of_the_engine() -> None:
    text = OPERATIONS.read_text()
    for metric in metrics.METRICS:
        labels = [f"`{name}`: " + ", ".join(f"`{split[name]}`" for split in metric.labels) for name in metric.labels[0]]
        assert f"| `{metric.name}` | {metric.kind} | {''.join(f'{label} ' for label in labels)}| " in text
    known = {metric.name + ending for metric in metrics.METRICS for ending in SERIES[metric.kind]}
    models = re.findall(r"add-model (\w+)", text)
    assert set(re.findall(r"\bqwen3_tts_\w+", text)) <= known | set(models)


@pytest.mark.parametrize("kind", ["input", "output"])
def test_every_tensor_is_documented(kind: str) -> None:
    config = (TALKER / "config.pbtxt").read_text()
    [block] = re.findall(rf"^{kind} \[(.*?)^\]", config, re.DOTALL | re.MULTILINE)
    tensors = re.findall(r'name: "(\w+)" data_type: (\w+)', block)
    assert len(tensors) == block.count("name:") > 0
    for name, datatype in tensors:
        shown = DATATYPES.get(datatype, datatype.removeprefix("TYPE_"))
        assert re.search(rf"^\| `{name}` \| {shown}[ |]", API.read_text(), re.MULTILINE), name


@pytest.mark.parametrize("page", [API, OPERATIONS], ids=lambda page: page.name)
def test_quoted_messages_exist_in_the_source(page: Path) -> None:
    quoted = [" ".join(message.split()) for message in re.findall(r'`[^`]*`|"([^"]+)"', prose(page)) if message]
    pieces = {piece for message in quoted for piece in message.split("…") if len(piece) >= MIN_QUOTED}
    assert len(pieces) > 15
    texts = messages()
    assert not [piece for piece in pieces if piece not in texts]


def prose(page: Path) -> str:
    """The text of a page without its examples."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"^    .*$", "", text, flags=re.MULTILINE)


def messages() -> str:
    """All sources, with adjacent string literals joined."""
    sources = (path.read_text() for folder in MESSAGE_FOLDERS for path in sorted((ROOT / folder).rglob("*.py")))
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(sources))


def test_python_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    speak, *others = re.findall(r"^```python\n(.*?)^```", API.read_text(), re.DOTALL | re.MULTILINE)
    for example in others:
        compile(example, str(API), "exec")
    with StubServer(frames=3) as server:
        exec(compile(speak.replace("localhost:8001", server.url), str(API), "exec"), {})
    assert (tmp_path / "hello.wav").stat().st_size == 44 + 3 * FRAME_SAMPLES * 2


def test_capacity_table_is_that_of_its_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    block = re.compile(r"^```\n\$ qwen3-tts ([^\n]*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
    [(command, output)] = block.findall(CAPACITY.read_text())
    main(shlex.split(command))
    assert capsys.readouterr().out == output


def test_simulated_figures_are_of_the_current_record() -> None:
    [(record, commit)] = re.findall(r"\]\((\S+)\) of commit (\w+)", CAPACITY.read_text())
    assert json.loads((DOCS / record).read_text())["commit"].startswith(commit), "run the commands of docs/capacity.md"


def test_badges_match_the_project() -> None:
    readme = (ROOT / "README.md").read_text()
    badges = dict(re.findall(r"^\[(\w+)-badge\]: \S+/badge/\w+-(\S+)-\w+$", readme, re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [release] = re.findall(r"^ARG TRITON_RELEASE=(\S+)$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)
    assert badges["licence"].replace("--", "-") == project["license"]
    assert f">={badges['python'].removesuffix('%2B')}" == project["requires-python"]
    assert badges["triton"] == release
