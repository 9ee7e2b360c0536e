"""The gateway's pods agree with its command line, settings and routes."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from qwen3_tts_client.__main__ import main
from qwen3_tts_gateway import config
from qwen3_tts_gateway.app import make_app
from qwen3_tts_gateway.serving import GRACE_SECONDS
from tests.unit.helm.chart import FLEET, GATEWAY_API, MINIMAL, NAME, ROOT, container, of_kind, one, pod_of, render

DOCKERFILE = (ROOT / "docker" / "Dockerfile").read_text()


def test_gateway_is_probed_at_its_own_endpoints_and_has_time_for_its_streams() -> None:
    gateway, pod = container(render(MINIMAL), "gateway"), pod_of(render(MINIMAL), "gateway")
    routes = {getattr(route, "path", None) for route in make_app_routes()}
    paths = {gateway[f"{name}Probe"]["httpGet"]["path"] for name in ("readiness", "liveness")}
    assert paths == {"/healthz", "/livez"} <= routes
    monitors = [found for found in of_kind(render(FLEET), "ServiceMonitor") if "gateway" in found["metadata"]["name"]]
    assert {monitors[0]["spec"]["endpoints"][0]["path"]} <= routes
    slept = gateway["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > slept + GRACE_SECONDS


def make_app_routes() -> list[object]:
    class Services:
        settings = config.Settings()
        metrics = None

    return list(make_app(Services()).routes)  # type: ignore[arg-type]


@pytest.mark.parametrize("values", [MINIMAL, FLEET, GATEWAY_API], ids=lambda path: path.stem)
def test_gateway_accepts_its_options_and_settings(
    values: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects = render(values)
    settings = tmp_path / "gateway.toml"
    settings.write_text(one(objects, "ConfigMap", "gateway")["data"]["gateway.toml"])
    gateway = container(objects, "gateway")
    [mount] = [mount for mount in gateway["volumeMounts"] if mount["name"] == "config"]
    options = [option.replace(f"{mount['mountPath']}/gateway.toml", str(settings)) for option in gateway["args"]]
    taken: list[config.Settings] = []

    async def serve(found: config.Settings) -> None:
        taken.append(found)

    monkeypatch.setattr("qwen3_tts_gateway.serving.serve", serve)
    assert main(["gateway", *options]) == 0
    given = yaml.safe_load(values.read_text()).get("gateway", {})
    assert taken[0].host == "0.0.0.0"
    assert list(taken[0].servers) == given.get("servers", [f"{NAME}-envoy:8001"])
    assert taken[0].auth == given.get("auth", True)
    for name, value in given.get("settings", {}).items():
        found = getattr(taken[0], name)
        assert (list(found) if isinstance(found, tuple) else found) == value


def test_gateway_image_takes_options() -> None:
    [entry] = re.findall(r"^ENTRYPOINT (\[.*gateway.*\])$", DOCKERFILE, re.MULTILINE)
    assert shlex.split(entry.strip("[]").replace(",", " "))[-1] == "gateway"
