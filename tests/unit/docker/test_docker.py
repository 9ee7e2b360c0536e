"""The files of docker/, checked without Docker: linted, valid, pinned and consistent with the code."""

import importlib.util
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

from export.tensorrt.api import PLUGIN_LIBRARY
from qwen3_tts_engine.config import MAIN_MODEL
from qwen3_tts_engine.environment import unknown_variables
from scripts.benchmarks.common import settings_of_environment
from scripts.server.drain import (
    DEFAULT_SECONDS,
    END_SECONDS,
    EXIT_SECONDS,
    FILE_VARIABLE,
    NOTICE_SECONDS,
    SECONDS_VARIABLE,
)
from scripts.server.mps import MPS_VARIABLE
from scripts.server.ports import Ports
from scripts.server.protection import (
    ADMIN_KEY_VARIABLE,
    MAX_REGION_BYTES,
    region_options,
    restrictions,
)
from scripts.server.tritonserver import EXIT, EXPLICIT

ROOT = Path(__file__).parents[3]
DOCKER = ROOT / "docker"
DOCKERFILE = (DOCKER / "Dockerfile").read_text()
TEST_STAGE = "FROM server AS test\n"
COMPOSE = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = Path(sys.executable).parent
SERVED = Path("/var/lib/qwen3-tts")
BUILD, SERVE = (DOCKER / name for name in ("build_codec.sh", "serve.sh"))
PLUGIN = "/opt/qwen3-tts/libcode2wav_plugin.so"
FORMS = ("tensorrt", "python")
# Images of one release have the same TensorRT.
NVIDIA = ("tensorrt", "tritonserver")
HALF = 2  # bytes
KEY = "0123456789-abcdef"
# Versions of the GPU measurements; the tests run another PyTorch on a CPU.
MEASURED = {"torch": "2.11.0", "triton": "3.6.0"}


def tool(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run([TOOLS / name, *map(str, arguments)], capture_output=True, text=True)


def pins(path: Path) -> dict[str, str]:
    lines = path.read_text().splitlines()
    found = (Requirement(line) for line in lines if line and not line.startswith(("#", "-")))
    return {requirement.name: str(requirement.specifier).removeprefix("==") for requirement in found}


def instructions(name: str, *, test: bool = False) -> list[str]:
    """The arguments of each instruction of the Dockerfile, continued lines joined: of all stages before that of the
    tests, or from it on."""
    joined = DOCKERFILE.replace("\\\n", " ").partition(TEST_STAGE)[2 if test else 0]
    return re.findall(rf"^{name} (.*)$", joined, re.MULTILINE)


def test_dockerfile_passes_hadolint() -> None:
    linted = tool("hadolint", DOCKER / "Dockerfile")
    assert (linted.returncode, linted.stdout) == (0, "")


def test_scripts_pass_shellcheck() -> None:
    folders = (DOCKER, ROOT / "scripts", ROOT / "export" / "plugin")
    linted = tool("shellcheck", *(file for folder in folders for file in folder.glob("*.sh")), ROOT / ".ci" / "run")
    assert (linted.returncode, linted.stdout) == (0, "")


def test_compose_file_is_valid(tmp_path: Path) -> None:
    schema = ("--builtin-schema", "vendor.compose-spec")
    assert tool("check-jsonschema", *schema, DOCKER / "compose.yaml").returncode == 0
    invalid = tmp_path / "compose.yaml"
    invalid.write_text((DOCKER / "compose.yaml").read_text().replace("restart:", "restarts:"))
    assert tool("check-jsonschema", *schema, invalid).returncode == 1


@pytest.mark.parametrize(
    ("file", "extras"),
    [
        ("requirements.txt", ["engine", "export", "normalize", "postgres"]),
        ("client-requirements.txt", []),
        ("gateway-requirements.txt", ["gateway"]),
    ],
)
def test_pins_are_complete_and_match_the_tested_versions(file: str, extras: list[str]) -> None:
    pinned, tested = pins(DOCKER / file), pins(ROOT / "scripts" / "constraints.txt")
    if "torch" in pinned:
        tested |= MEASURED
    assert {name: tested.get(name) for name in pinned} == pinned
    optional = PROJECT["optional-dependencies"]
    needed = [Requirement(line) for extra in extras for line in optional[extra]] or list(
        map(Requirement, PROJECT["dependencies"])
    )
    for requirement in needed:
        if requirement.name != PROJECT["name"]:
            assert requirement.specifier.contains(pinned[requirement.name]), requirement


def test_image_has_the_measured_pytorch() -> None:
    """PyTorch requires one release of the Triton compiler; the tests compile the kernels with it."""
    records = [json.loads(path.read_text()) for path in (ROOT / "docs" / "benchmarks").glob("*-h200.json")]
    found = {record.get("settings", {}).get("packages", record).get("torch") for record in records} - {None}
    assert {version.split("+")[0] for version in found} == {MEASURED["torch"]}
    [triton] = [line for line in PROJECT["optional-dependencies"]["test"] if line.startswith("triton==")]
    assert Requirement(triton).specifier.contains(MEASURED["triton"])


def test_images_are_pinned() -> None:
    bases = [line.split()[0] for line in instructions("FROM")]
    assert bases == [
        *["python:3.12.12-slim-bookworm"] * 2,
        *(f"nvcr.io/nvidia/{name}:${{TRITON_RELEASE}}-py3" for name in NVIDIA),
    ]
    for image in (service["image"] for service in SERVICES.values()):
        assert re.search(r":v?\d+\.\d+\.\d+(rc\d+)?(-\$\{TRITON_RELEASE:-[\d.]+\})?$", image), image


def test_all_files_default_to_one_triton_release() -> None:
    [argument] = instructions("ARG")
    release = argument.removeprefix("TRITON_RELEASE=")
    # 26.11 is the first release with everything that the Dockerfile names.
    assert re.fullmatch(r"\d\d\.\d\d", release)
    assert release >= "26.11"
    assert DOCKERFILE.index("ARG TRITON_RELEASE") < DOCKERFILE.index("FROM "), "the argument applies to every FROM"
    for name in ("codec", "server"):
        assert SERVICES[name]["build"]["args"] == {"TRITON_RELEASE": f"${{TRITON_RELEASE:-{release}}}"}
        # The tag names the release, so another release is built as another image.
        assert SERVICES[name]["image"].endswith(f"-${{TRITON_RELEASE:-{release}}}")


def tensorrt_requirement() -> Any:
    spec = importlib.util.spec_from_file_location("tensorrt_requirement", DOCKER / "tensorrt_requirement.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def library(*version: int) -> Any:
    """libnvinfer as ctypes exposes it."""
    parts = zip(("Major", "Minor", "Patch", "Build"), version, strict=True)
    return SimpleNamespace(**{f"getInferLib{part}Version": lambda number=number: number for part, number in parts})


@pytest.mark.parametrize("version", [(10, 14, 1, 48), (11, 4, 0, 106)])
def test_tensorrt_requirement_matches_the_build_in_the_image(
    version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(name: str) -> Any:
        if name != f"libnvinfer.so.{version[0]}":
            raise OSError(name)
        return library(*version)

    module = tensorrt_requirement()
    monkeypatch.setattr(module.ctypes, "CDLL", load)
    requirement, built = Requirement(module.requirement(module.load())), ".".join(map(str, version))
    assert requirement.name == "tensorrt-cu13"
    assert requirement.specifier.contains(built)
    assert requirement.specifier.contains(f"{built}.post1")
    for other in (f"{built}0", built.rsplit(".", 1)[0], "11.4.0.99", "10.14.1.49"):
        assert not requirement.specifier.contains(other), other


def test_image_without_tensorrt_fails_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> None:
        raise OSError(name)

    module = tensorrt_requirement()
    monkeypatch.setattr(module.ctypes, "CDLL", load)
    with pytest.raises(SystemExit, match=r"no libnvinfer\.so\.11 or \.10 in this image: choose another TRITON_RELEASE"):
        module.load()


def test_dockerfile_installs_the_tensorrt_requirement() -> None:
    [run] = [line for line in instructions("RUN") if "tensorrt" in line]
    assert run.startswith("python3 tensorrt_requirement.py >tensorrt.txt && ")
    assert run.endswith("--requirement requirements.txt --requirement tensorrt.txt")
    assert not [name for name in pins(DOCKER / "requirements.txt") if "tensorrt" in name]


def test_client_images_find_the_package() -> None:
    """COPY client client in WORKDIR /opt/client, and in the server's."""
    paths = re.findall(r"\bPYTHONPATH=/opt/[^/]+/(\S+)", DOCKERFILE)
    assert len(paths) == 3
    assert all((ROOT / path / "qwen3_tts_client" / "__main__.py").is_file() for path in paths)


def test_the_test_stage_has_the_environment_of_setup() -> None:
    assert 'bash -c "source scripts/setup.sh test"' in instructions("RUN", test=True)[-1]
    assert instructions("WORKDIR", test=True) == ["/src"], "setup.sh installs again in another folder"
    assert instructions("FROM", test=True) == ["server"], "the default target comes last"
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert {"!scripts/*.sh", "!scripts/constraints.txt", "!pyproject.toml", "!README.md"} <= set(ignored)
    guide = (ROOT / "CONTRIBUTING.md").read_text()
    assert '--volume "$PWD:/src" qwen3-tts-test scripts/test.sh tests/e2e' in guide


def test_copied_files_exist() -> None:
    for arguments in instructions("COPY") + instructions("COPY", test=True):
        from_stage = arguments.startswith("--from=")
        for source in [part for part in shlex.split(arguments) if not part.startswith("--") and not from_stage][:-1]:
            assert (ROOT / source).exists(), source


TRITONSERVER = """#!/bin/bash
[ "$1" = --help ] && exit 1
ulimit -f >"$RECORDS/limit"
grep SigIgn /proc/$$/status >"$RECORDS/ignored"
env >"$RECORDS/env"
printf "%s\\n" "$@" >"$RECORDS/command"
"""


def serve(folder: Path, *arguments: str, **environment: str) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Runs the image's launcher with a tritonserver that records its options and ends; also returns these."""
    program(folder / "tools" / "tritonserver", TRITONSERVER)
    (folder / "served" / "model_repository").mkdir(parents=True, exist_ok=True)
    text = SERVE.read_text().replace(str(SERVED), str(folder / "served")).replace("=/tmp ", f"={folder} ")
    given = os.environ | {"PATH": f"{folder / 'tools'}:{TOOLS}:{os.environ['PATH']}", "RECORDS": str(folder)}
    given |= {ADMIN_KEY_VARIABLE: KEY, PLUGIN_LIBRARY: "", MPS_VARIABLE: "off"} | environment
    command = ["bash", "-c", text, SERVE.name, *Ports.free().options, *arguments]
    done = subprocess.run(command, env=given, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    record = folder / "command"
    return done, record.read_text().splitlines() if record.exists() else []


def program(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    file.chmod(0o755)


@pytest.mark.parametrize("form", FORMS)
def test_the_image_serves_the_form_that_was_built(form: str, tmp_path: Path) -> None:
    """By the exporter's manifest, since a plan is not built everywhere (build_codec.sh)."""
    manifest = tmp_path / "served" / "model_repository" / "code2wav" / "1" / "model.json"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"form": form}))
    done, command = serve(tmp_path, "--log-verbose=1", **{PLUGIN_LIBRARY: PLUGIN})
    assert done.returncode == 0, done.stderr
    assert command[0] == f"--model-repository={tmp_path}/served/model_repository"
    assert {*EXPLICIT, *EXIT, *restrictions([], KEY), *region_options("python"), "--log-verbose=1"} < set(command)
    assert {f"--{protocol}-address=0.0.0.0" for protocol in ("http", "grpc", "metrics")} < set(command)
    assert not [option for option in command if "127.0.0.1" in option]
    chosen = [option for option in command if option.startswith("--model-config-name=")]
    assert chosen == ([] if form == "tensorrt" else ["--model-config-name=python"])
    assert f"--backend-config=tensorrt,plugins={PLUGIN}" in command
    assert ADMIN_KEY_VARIABLE not in (tmp_path / "env").read_text()


def test_region_size_is_limited_to_fit_the_shared_memory(tmp_path: Path) -> None:
    serve(tmp_path)
    assert int((tmp_path / "limit").read_text()) << 10 == MAX_REGION_BYTES
    ignored = int((tmp_path / "ignored").read_text().split()[1], 16)
    assert ignored >> (signal.SIGXFSZ - 1) & 1
    # One region each for the talker and the codec.
    assert int(SERVICES["server"]["shm_size"].removesuffix("gb")) << 30 > 2 * MAX_REGION_BYTES


def test_each_start_generates_an_admin_key_when_none_is_given(tmp_path: Path) -> None:
    keys = []
    for _ in range(2):
        done, command = serve(tmp_path, **{ADMIN_KEY_VARIABLE: ""})
        [file] = tmp_path.glob("admin_key-*")
        keys.append(file.read_text().strip())
        assert set(restrictions([], keys[-1])) < set(command)
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert keys[-1] not in done.stdout + done.stderr
        assert str(file) in done.stderr
        file.unlink()
    assert len(set(keys)) == 2
    assert all(re.fullmatch(r"[0-9a-f]{32}", key) for key in keys)
    assert SERVICES["server"]["environment"][ADMIN_KEY_VARIABLE] == f"${{{ADMIN_KEY_VARIABLE}:-}}"


@pytest.mark.parametrize("key", ["short", "with:a=colon-and-more", "two words two words"])
def test_rejects_an_admin_key_that_triton_would_misread(key: str, tmp_path: Path) -> None:
    done, command = serve(tmp_path, **{ADMIN_KEY_VARIABLE: key})
    assert (done.returncode, command) == (1, [])
    assert ADMIN_KEY_VARIABLE in done.stderr


def run_build(folder: Path, form: str | None) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Runs build_codec.sh with a stand-in for Python; also returns the last command that it starts."""
    record = folder / "command"
    program(folder / "tools" / "python3", f'#!/bin/bash\nprintf "%s\\n" python3 "$@" >"{record}"\n')
    (folder / "model_repository").mkdir()
    (folder / "model_repository" / "config.pbtxt").touch()
    text = BUILD.read_text().replace(str(SERVED), str(folder / "served"))
    environment = {"PATH": f"{folder / 'tools'}:{os.environ['PATH']}", "QWEN3_TTS_CHECKPOINT": "/checkpoint"}
    environment |= {} if form is None else {"CODEC_FORM": form}
    command = ["bash", "-c", text, BUILD.name]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    return done, record.read_text().splitlines() if record.exists() else []


def test_benchmark_records_hold_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (ADMIN_KEY_VARIABLE, "QWEN3_TTS_VOICES_DSN", "QWEN3_TTS_DESIGN_VOICES_DSN"):
        monkeypatch.setenv(name, KEY)
    monkeypatch.setenv("QWEN3_TTS_MAX_STREAMS", "7")
    recorded = settings_of_environment()
    assert recorded["QWEN3_TTS_MAX_STREAMS"] == "7"
    assert KEY not in recorded.values()


def test_ports_are_published_on_localhost_by_default() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith(("127.0.0.1:", "${PUBLISH_ADDRESS:-127.0.0.1}:")) for port in published)


def test_health_check_probes_the_talker() -> None:
    [probe] = instructions("HEALTHCHECK")
    assert f"http://localhost:{Ports.http}/v2/models/{MAIN_MODEL}/ready" in probe


def test_image_requires_the_kernels() -> None:
    assert "QWEN3_TTS_KERNELS=required" in instructions("ENV")[-1]


@pytest.mark.parametrize("form", FORMS)
def test_build_exports_the_served_form(form: str, tmp_path: Path) -> None:
    done, command = run_build(tmp_path, form)
    assert done.returncode == 0, done.stderr
    assert command[:5] == ["python3", "-m", "export", "--form", form]
    assert (tmp_path / "served" / "model_repository" / "config.pbtxt").is_file()


def test_build_falls_back_to_the_kernels_without_tensorrt(tmp_path: Path) -> None:
    for form, built, code in (("tensorrt", ["tensorrt", "python"], 0), ("python", ["python"], 1)):
        folder = tmp_path / form
        (folder / "model_repository").mkdir(parents=True)
        (folder / "python3").write_text(f'#!/bin/sh\necho "$4" >>{folder}/built\n[ $(wc -l <{folder}/built) = 2 ]\n')
        (folder / "python3").chmod(0o755)
        environment = {"PATH": f"{folder}:{os.environ['PATH']}", "QWEN3_TTS_CHECKPOINT": "any", "CODEC_FORM": form}
        text = BUILD.read_text().replace(str(SERVED), str(folder / "served"))
        done = subprocess.run(["bash", "-c", text], env=environment, cwd=folder, capture_output=True, text=True)
        assert (done.returncode, (folder / "built").read_text().split()) == (code, built)
        assert ("no TensorRT plan here" in done.stderr) == (form == "tensorrt")


def test_plugin_is_built_and_used_by_export_and_server() -> None:
    assert "COPY --from=plugin /libcode2wav_plugin.so ./" in DOCKERFILE
    assert f"{PLUGIN_LIBRARY}={PLUGIN} " in instructions("ENV")[-1]
    assert f"{instructions('WORKDIR')[-1]}/libcode2wav_plugin.so" == PLUGIN
    [build] = [line for line in instructions("RUN") if "plugin" in line]
    assert build.split()[:2] == ["/plugin/build.sh", "/libcode2wav_plugin.so"]
    assert os.access(ROOT / "export/plugin/build.sh", os.X_OK)


@pytest.mark.parametrize("form", ["onnx", "TensorRT", "", None])
def test_build_rejects_other_forms(form: str | None, tmp_path: Path) -> None:
    done, command = run_build(tmp_path, form)
    assert done.returncode != 0
    assert "CODEC_FORM" in done.stderr
    assert "tensorrt or python" in done.stderr
    assert not command
    assert not (tmp_path / "served").exists()


def test_image_drains_by_the_file_that_its_hooks_know() -> None:
    """A preStop hook has the image's environment, not that of the launcher."""
    assert f"{FILE_VARIABLE}=/tmp/drain " in instructions("ENV")[-1]
    assert "/tmp" in SERVICES["server"]["tmpfs"]


def test_health_check_probes_the_model_and_not_the_server() -> None:
    """Triton 2.51 reports a server as ready even if its model is gone."""
    [check] = instructions("HEALTHCHECK")
    assert "/v2/models/qwen3_tts/ready" in check
    assert SERVICES["server"]["restart"] == "unless-stopped"


def test_stop_grace_period_covers_the_drain_and_the_end_of_triton() -> None:
    grace = SERVICES["server"]["stop_grace_period"]
    assert SERVICES["server"]["environment"][SECONDS_VARIABLE] == f"${{{SECONDS_VARIABLE}:-{DEFAULT_SECONDS:g}}}"
    assert int(grace.removesuffix("s")) > NOTICE_SECONDS + DEFAULT_SECONDS + END_SECONDS + EXIT_SECONDS


def test_containers_run_unprivileged_and_fetch_no_code() -> None:
    assert instructions("USER") == ["1000:1000"] * 3
    assert "git clone" not in DOCKERFILE + BUILD.read_text() + SERVE.read_text()
    for name in ("codec", "server", "client", "gateway"):
        assert SERVICES[name]["read_only"] is True
    assert len(instructions("HEALTHCHECK")) == 1


def test_repository_is_built_before_serving_and_mounted_read_only() -> None:
    assert "repository:/var/lib/qwen3-tts" in SERVICES["codec"]["volumes"]
    assert "repository:/var/lib/qwen3-tts:ro" in SERVICES["server"]["volumes"]
    assert f"repository={SERVED}/model_repository\n" in BUILD.read_text()
    assert f"--model-repository={SERVED}/model_repository " in SERVE.read_text()
    assert instructions("CMD")[-1] == '["./serve.sh"]'
    assert "command" not in SERVICES["server"]
    assert SERVICES["codec"]["command"] == ["./build_codec.sh"]
    assert SERVICES["codec"]["environment"]["CODEC_FORM"] == "${CODEC_FORM:-python}"
    assert SERVICES["server"]["depends_on"] == {"codec": {"condition": "service_completed_successfully"}}
    assert SERVICES["client"]["depends_on"] == {"server": {"condition": "service_healthy"}}


def test_environment_variables_name_existing_settings() -> None:
    names = {name for service in SERVICES.values() for name in service.get("environment", {})}
    names |= set(re.findall(r"\b(QWEN3_TTS_\w+)=", DOCKERFILE))
    assert ADMIN_KEY_VARIABLE in names
    assert not list(unknown_variables(names))


def test_mounted_files_exist() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", volume).split(":")[0]
            assert source in COMPOSE["volumes"] or (DOCKER / source).exists(), volume


def test_prometheus_scrapes_the_metrics_port() -> None:
    jobs = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yaml").read_text())["scrape_configs"]
    assert jobs[0]["static_configs"] == [{"targets": [f"server:{Ports().metrics}"]}]


def test_build_script_uses_existing_options_of_export() -> None:
    helped = subprocess.run([sys.executable, "-m", "export", "--help"], capture_output=True, text=True, cwd=ROOT)
    _, command = BUILD.read_text().split("-m export")
    options = set(re.findall(r"(?<![\w-])--[a-z-]+", command))
    assert options
    assert all(option in helped.stdout for option in options), options
