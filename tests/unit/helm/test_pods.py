"""The pods agree with the images, with compose and with the programs in them."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from qwen3_tts_engine.config import ENVIRONMENT_PREFIX, EngineConfig
from qwen3_tts_engine.environment import unknown_variables
from qwen3_tts_gateway import config
from scripts.server.drain import END_SECONDS, EXIT_SECONDS, NOTICE_SECONDS
from scripts.server.ports import Ports
from scripts.server.protection import MAX_REGION_BYTES
from tests.unit.helm.chart import (
    CHART,
    FLEET,
    GATEWAY_API,
    MINIMAL,
    NAME,
    ROOT,
    VALUES,
    container,
    containers,
    of_kind,
    one,
    pod_of,
    render,
    variables,
)

DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
SERVICES = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
METADATA = yaml.safe_load((CHART / "Chart.yaml").read_text())
every_values_file = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)


def resolved(image: str) -> str:
    """An image of compose with the defaults of its variables."""
    return re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", image)


def test_images_and_version_are_those_of_compose() -> None:
    objects = render(MINIMAL)
    assert container(objects, "server")["image"] == resolved(SERVICES["server"]["image"])
    assert container(objects, "gateway")["image"] == resolved(SERVICES["gateway"]["image"])
    version = re.search(r"__version__ = \"(.*)\"", (ROOT / "client/qwen3_tts_client/__init__.py").read_text())
    assert version is not None
    assert METADATA["appVersion"] == version[1]


@every_values_file
def test_variables_name_existing_settings(values: Path) -> None:
    names = {name for found in containers(render(values)) for name in variables(found)}
    assert not list(unknown_variables(names))
    assert "CODEC_FORM" in names


def test_settings_override_the_presets_and_reach_the_server_alone() -> None:
    export, server = [found for found in containers(render(FLEET)) if found["name"] in ("export", "server")]
    assert variables(server)["QWEN3_TTS_MAX_STREAMS"] == "256"
    assert variables(server)["QWEN3_TTS_TRIM_SILENCE"] == "false"
    assert "QWEN3_TTS_MAX_STREAMS" not in variables(export)
    changed = render(FLEET, "--set", "server.settings.max_streams=300")
    assert variables(container(changed, "server"))["QWEN3_TTS_MAX_STREAMS"] == "300"


@every_values_file
def test_settings_are_accepted_by_the_engine(values: Path) -> None:
    prefix = ENVIRONMENT_PREFIX.lower()
    given: dict[str, Any] = {
        name.lower().removeprefix(prefix): value for name, value in server_variables(values).items()
    }
    assert EngineConfig(**{name: value for name, value in given.items() if name in EngineConfig.model_fields})


def server_variables(values: Path) -> dict[str, str]:
    return variables(container(render(values), "server"))


@every_values_file
def test_commands_are_scripts_of_the_image(values: Path) -> None:
    for found in containers(render(values)):
        if found["name"] in ("export", "server"):
            [script] = found["command"]
            assert (DOCKER / script).is_file()
            copied = re.findall(r"^COPY .*", DOCKERFILE, re.MULTILINE)
            assert any(f"docker/{Path(script).name} " in line for line in copied)
    commands = [found["command"] for found in containers(render(values)) if found["name"] in ("export", "server")]
    assert commands == [SERVICES["codec"]["command"], ["./serve.sh"]]


def test_ports_are_those_of_the_image_and_compose() -> None:
    ports = {port["name"]: port["containerPort"] for port in container(render(MINIMAL), "server")["ports"]}
    assert ports == vars(Ports())
    assert f"EXPOSE {' '.join(map(str, sorted(ports.values())))}" in DOCKERFILE
    published = {int(port.rsplit(":", 1)[1]) for port in SERVICES["server"]["ports"]}
    assert published == set(ports.values())
    [port] = container(render(MINIMAL), "gateway")["ports"]
    assert port["containerPort"] == config.Settings().port


@every_values_file
def test_servers_have_the_volumes_of_compose(values: Path) -> None:
    compose = {resolved(volume).split(":")[1] for volume in SERVICES["server"]["volumes"]} - {"/checkpoint"}
    mounts = {mount["mountPath"]: mount for mount in container(render(values), "server")["volumeMounts"]}
    assert compose | {"/tmp", "/dev/shm"} <= mounts.keys()
    assert mounts["/var/lib/qwen3-tts"]["readOnly"] is True
    pod = pod_of(render(values), "server")
    exported = {mount["mountPath"]: mount["name"] for mount in pod["initContainers"][0]["volumeMounts"]}
    assert exported["/var/lib/qwen3-tts"] == mounts["/var/lib/qwen3-tts"]["name"]
    assert {"name": "repository", "emptyDir": {}} in pod["volumes"], "a plan fits one GPU and one image"


def test_shared_memory_is_that_of_compose() -> None:
    volumes = {volume["name"]: volume for volume in pod_of(render(MINIMAL), "server")["volumes"]}
    memory = volumes["shm"]["emptyDir"]
    assert memory == {"medium": "Memory", "sizeLimit": SERVICES["server"]["shm_size"].replace("gb", "Gi")}
    assert int(memory["sizeLimit"].removesuffix("Gi")) << 30 > 2 * MAX_REGION_BYTES


@every_values_file
def test_one_gpu_for_each_server_and_its_export(values: Path) -> None:
    pod = pod_of(render(values), "server")
    for found in (*pod["initContainers"], *pod["containers"]):
        assert found["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert not [f for f in containers(render(values)) if "gpu" in str(f["resources"]) and f["name"] == "gateway"]


def test_a_server_is_ready_with_its_model_and_lives_while_it_drains() -> None:
    server = container(render(MINIMAL), "server")
    probed = {name: server[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
    assert {probe["port"] for probe in probed.values()} == {"http"}
    assert probed["startup"]["path"] == probed["readiness"]["path"] == "/v2/models/qwen3_tts/ready"
    assert probed["readiness"]["path"] in DOCKERFILE, "the image's HEALTHCHECK"
    assert probed["liveness"]["path"] == "/v2/health/live"


@pytest.mark.parametrize("seconds", [30, 599, 600])
def test_a_server_may_start_for_start_seconds(seconds: int) -> None:
    probe = container(render(MINIMAL, "--set", f"server.startSeconds={seconds}"), "server")["startupProbe"]
    assert seconds <= probe["periodSeconds"] * probe["failureThreshold"] < seconds + probe["periodSeconds"]


@pytest.mark.parametrize("seconds", [0, 30, 600])
def test_grace_period_covers_the_drain_and_the_end_of_triton(seconds: int) -> None:
    objects = render(MINIMAL, "--set", f"server.drainSeconds={seconds}")
    pod, server = pod_of(objects, "server"), container(objects, "server")
    assert variables(server)["QWEN3_TTS_DRAIN_SECONDS"] == str(seconds)
    slept = server["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] >= slept + NOTICE_SECONDS + seconds + END_SECONDS + EXIT_SECONDS


@every_values_file
def test_containers_run_unprivileged(values: Path) -> None:
    for deployment in of_kind(render(values), "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert "USER 1000:1000" in DOCKERFILE
        assert pod["securityContext"]["runAsUser"] == pod["securityContext"]["fsGroup"] == 1000
        assert pod["automountServiceAccountToken"] is False
        # A Service NAME adds variables NAME_…, which could be taken for settings.
        assert pod["enableServiceLinks"] is False
        for found in (*pod.get("initContainers", []), *pod["containers"]):
            assert found["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


def test_secrets_have_the_keys_that_pods_read() -> None:
    for values in VALUES:
        objects = render(values)
        existing = yaml.safe_load(values.read_text()).get("secrets", {}).get("existing")
        held = {
            f"{secret['metadata']['name']}/{key}"
            for secret in of_kind(objects, "Secret")
            for key in secret["stringData"]
        }
        read = {
            value
            for found in containers(objects)
            for value in variables(found).values()
            if value.partition("/")[2] in ("admin-key", "gateway-keys", "voices-dsn")
        }
        assert read == (read if existing else held)
        assert all(value.startswith(f"{existing or NAME}/") or not existing for value in read)


def test_secrets_are_in_no_other_object() -> None:
    objects = [found for found in render(GATEWAY_API) if found["kind"] != "Secret"]
    given = yaml.safe_load(GATEWAY_API.read_text())["secrets"]
    assert not [value for value in given.values() if str(value) in str(objects)]


def test_changed_secrets_restart_the_pods_that_read_them() -> None:
    def annotations(*options: str) -> dict[str, str]:
        objects = render(GATEWAY_API, *options)
        return {
            name: one(objects, "Deployment", name)["spec"]["template"]["metadata"]["annotations"]
            for name in ("server", "gateway")
        }

    before, after = annotations(), annotations("--set", "secrets.adminKey=fedcba9876543210")
    assert before["server"] != after["server"]
    assert before["gateway"] == after["gateway"]


def test_replicas_are_left_to_the_autoscaler() -> None:
    assert "replicas" not in one(render(FLEET), "Deployment", "server")["spec"]
    assert one(render(GATEWAY_API), "Deployment", "server")["spec"]["replicas"] == 4
