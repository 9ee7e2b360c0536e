"""CI runs on every Python of pyproject.toml, hooks run the checks of scripts/test.sh, and pins fit pyproject.toml."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
JOBS: dict[str, dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text())["jobs"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# scripts/constraints.sh has the reason.
UNPINNED = {"triton"}


def test_workflow_is_valid() -> None:
    command = [str(Path(sys.executable).parent / "check-jsonschema"), "--builtin-schema", "vendor.github-workflows"]
    done = subprocess.run([*command, WORKFLOW], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(("job", "command"), [("test", ".ci/run"), ("all", "scripts/test.sh --all")])
def test_ci_runs_on_every_python_of_the_project(job: str, command: str) -> None:
    prefix = "Programming Language :: Python :: "
    pythons = [name.removeprefix(prefix) for name in PROJECT["classifiers"] if name.startswith(prefix)]
    assert pythons[0] == PROJECT["requires-python"].removeprefix(">=")
    assert JOBS[job]["strategy"]["matrix"]["python"] == pythons
    _, setup, run = JOBS[job]["steps"]
    assert setup["with"]["python-version"] == "${{ matrix.python }}"
    assert run == {"run": command}


def test_cached_packages_depend_on_existing_files() -> None:
    for job in JOBS.values():
        options = job["steps"][1]["with"]
        assert options["cache"] == "pip"
        assert all((ROOT / path).is_file() for path in options["cache-dependency-path"].split())


def test_hooks_run_the_checks_of_the_test_script() -> None:
    [repository] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    entries = [hook["entry"] for hook in repository["hooks"]]
    assert entries == ["ruff check .", "ruff format --check .", "scripts/typecheck.sh"]
    lines = [line.strip() for line in (ROOT / "scripts" / "test.sh").read_text().splitlines()]
    assert [line for line in lines if line in entries] == entries


def test_every_requirement_is_pinned_within_its_limits() -> None:
    lines = (ROOT / "scripts" / "constraints.txt").read_text().splitlines()
    pins = {canonicalize_name(name): version for name, _, version in (line.partition("==") for line in lines)}
    groups = [PROJECT["dependencies"], *PROJECT["optional-dependencies"].values()]
    needed = [requirement for group in groups for requirement in map(Requirement, group)]
    for requirement in needed:
        name = canonicalize_name(requirement.name)
        if name not in {PROJECT["name"], *UNPINNED}:
            assert requirement.specifier.contains(pins.get(name, "")), f"{requirement}: run scripts/constraints.sh"
