"""Modules import downwards only, from the adapter to the checkpoint."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2] / "model_repository"
ROOT = REPOSITORY / "qwen3_tts" / "1"
MAX_MODULES = 12
MAX_LINES = 250
# From the bottom; rooms of one layer do not know each other.
LAYERS = (
    {"checkpoint"},
    {"audio", "voice", "request", "metrics", "threads", "pinned_memory", "core", "interfaces", "config", "contract"},
    {"scheduling", "talker", "codec", "voices"},
    {"engine", "delivery"},
    {"frontend"},
    {"lifecycle"},
    {"startup"},
    {"triton_adapter"},
    {"model"},
)
# Here the modules of one layer may know each other.
DATA, ENGINE = 1, 3
LIMITED = [path for path in sorted(REPOSITORY.rglob("*.py")) if "kernels" not in path.parts]
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.rglob("*.py")}


def imports(path: Path) -> Iterator[str]:
    """Modules of this model that a file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if found := [m for m in (name, node.module) if m in MODULES]:
                    yield found[0]


def room(module: str) -> str:
    parts = module.split(".")
    if module == "qwen3_tts_engine.codec.contract":
        return "contract"  # limits and names, which everyone may know
    return parts[1] if parts[0] == "qwen3_tts_engine" else parts[0]


def layer(module: str) -> int:
    [number] = [number for number, rooms in enumerate(LAYERS) if room(module) in rooms]
    return number


@pytest.mark.parametrize("module", sorted(name for name in MODULES if not name.endswith("__init__")))
def test_a_module_imports_from_its_room_and_from_layers_below(module: str) -> None:
    for imported in imports(MODULES[module]):
        here, there = layer(module), layer(imported)
        is_neighbour = room(module) == room(imported) or here == there in (DATA, ENGINE)
        assert is_neighbour or there < here, f"{module} imports {imported}"


def test_no_modules_import_each_other_in_a_circle() -> None:
    graph = {module: set(imports(path)) - {module} for module, path in MODULES.items()}
    while free := [module for module, wanted in graph.items() if not wanted & graph.keys()]:
        for module in free:
            del graph[module]
    assert not graph


@pytest.mark.parametrize("folder", sorted({path.parent for path in MODULES.values()}), ids=lambda path: path.name)
def test_a_folder_is_taken_in_at_a_glance(folder: Path) -> None:
    modules = [path for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert len(modules) <= MAX_MODULES


@pytest.mark.parametrize(
    "path", sorted(ROOT.parents[1].rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT.parents[1]))
)
def test_a_module_fits_on_a_few_screens(path: Path) -> None:
    if "kernels" not in path.parts:
        assert len(path.read_text().splitlines()) <= MAX_LINES
