"""Renders the chart by Helm."""

import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "docker" / "helm" / "qwen3-tts"
VALUES = sorted(CHART.glob("ci/*-values.yaml"))
MINIMAL, FLEET, GATEWAY_API = (CHART / "ci" / f"{name}-values.yaml" for name in ("minimal", "fleet", "gateway-api"))
RELEASE, NAMESPACE, NAME = "demo", "speech", "demo-qwen3-tts"
Object = dict[str, Any]


def helm(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).parent / "helm"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


def template(values: Path, *options: str) -> subprocess.CompletedProcess[str]:
    return helm("template", RELEASE, CHART, "--namespace", NAMESPACE, "--values", values, *options)


@cache
def render(values: Path, *options: str) -> list[Object]:
    """All objects of a value file and further options, such as `--set a.b=c`."""
    done = template(values, *options)
    assert done.returncode == 0, done.stderr
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def of_kind(objects: list[Object], kind: str) -> list[Object]:
    return [found for found in objects if found["kind"] == kind]


def one(objects: list[Object], kind: str, component: str) -> Object:
    [found] = [o for o in of_kind(objects, kind) if o["metadata"]["labels"]["app.kubernetes.io/component"] == component]
    return found


def pod_of(objects: list[Object], component: str) -> Object:
    pod: Object = one(objects, "Deployment", component)["spec"]["template"]["spec"]
    return pod


def container(objects: list[Object], component: str) -> Object:
    found: Object = pod_of(objects, component)["containers"][0]
    return found


def containers(objects: list[Object]) -> Iterator[Object]:
    for deployment in of_kind(objects, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        yield from [*pod.get("initContainers", []), *pod["containers"]]


def variables(container: Object) -> dict[str, str]:
    """Values by name; those of a Secret are `NAME/KEY`."""
    found = {}
    for variable in container.get("env", []):
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        found[variable["name"]] = f"{reference['name']}/{reference['key']}" if reference else variable["value"]
    assert len(found) == len(container.get("env", [])), "a variable is set twice"
    return found
