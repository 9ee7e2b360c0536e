"""Modules import downwards only, from the adapter to the checkpoint."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2] / "model_repository"
ROOT = REPOSITORY / "qwen3_tts" / "1"
# From the bottom up; packages of one layer do not import each other.
LAYERS = (
    {"checkpoint"},
    {"audio", "voice", "request", "metrics", "threads", "pinned_memory", "core"}
    | {"interfaces", "config", "arguments", "environment", "contract"},
    {"scheduling", "talker", "codec", "voices"},
    {"engine"},
    {"frontend"},
    {"lifecycle"},
    {"startup"},
    {"service"},
    {"process"},
    {"triton_adapter"},
    {"model", "engine_process"},
)
# In this layer, modules may import each other.
DATA = 1
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in ROOT.rglob("*.py")}


def imports(path: Path) -> Iterator[str]:
    """Modules of this model that a file imports, at any level of it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if found := [m for m in (name, node.module) if m in MODULES]:
                    yield found[0]


def package(module: str) -> str:
    parts = module.split(".")
    if module == "qwen3_tts_engine.codec.contract":
        return "contract"  # limits and names, which every layer may import
    return parts[1] if parts[0] == "qwen3_tts_engine" else parts[0]


def layer(module: str) -> int:
    [number] = [number for number, packages in enumerate(LAYERS) if package(module) in packages]
    return number


@pytest.mark.parametrize("module", sorted(name for name in MODULES if not name.endswith("__init__")))
def test_a_module_imports_only_from_its_package_and_lower_layers(module: str) -> None:
    for imported in imports(MODULES[module]):
        here, there = layer(module), layer(imported)
        is_neighbour = package(module) == package(imported) or here == there == DATA
        assert is_neighbour or there < here, f"{module} imports {imported}"


def test_there_are_no_import_cycles() -> None:
    graph = {module: set(imports(path)) - {module} for module, path in MODULES.items()}
    while free := [module for module, imported_modules in graph.items() if not imported_modules & graph.keys()]:
        for module in free:
            del graph[module]
    assert not graph


def test_no_file_is_a_copy_of_another() -> None:
    """What two models need is a link in the second one (docs/architecture.md)."""
    roots = (REPOSITORY, REPOSITORY.parents[0] / "export", REPOSITORY.parents[0] / "scripts")
    suffixes = {".py", ".cu", ".cuh", ".cpp", ".h", ".sh"}
    files = [file for root in roots for file in root.rglob("*") if file.suffix in suffixes]
    assert [file for file in files if file.is_symlink()]
    contents = Counter(file.read_bytes() for file in files if not file.is_symlink() and file.stat().st_size)
    assert not [content for content, count in contents.items() if count > 1]
