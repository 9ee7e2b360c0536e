"""Wrong values fail with a message that names them; the schema knows every value."""

import json
import re
import shutil
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft7Validator

from scripts import chart_schema
from tests.unit.helm.chart import CHART, FLEET, GATEWAY_API, MINIMAL, ROOT, VALUES, Object, helm, template

DEFAULTS = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
UNMEASURED, OTHER = (CHART / "ci" / f"{name}-values.yaml" for name in ("unmeasured", "other-gpu"))
PAGE = ROOT / "docs" / "kubernetes.md"

# Values that the schema refuses.
INVALID = [
    ("server.replicas=0", "server.replicas: Must be greater than or equal to 1"),
    ("server.replica=2", "server: Additional property replica is not allowed"),
    ("server.settings.max_streams=2000", "server.settings.max_streams: Must be less than or equal to 1024"),
    ("server.settings.max_streams=many", "server.settings.max_streams: Does not match pattern '^auto$'"),
    ("server.settings.max_strems=2", "server.settings: Additional property max_strems is not allowed"),
    ("server.settings.overload=drop", "server.settings.overload"),
    ("server.settings.voices_folder=/x", "server.settings: Additional property voices_folder is not allowed"),
    ("gateway.settings.cloning=never", "gateway.settings.cloning"),
    ("gateway.settings.port=80", "gateway.settings: Additional property port is not allowed"),
    ("gateway.servers={localhost}", "gateway.servers.0: Does not match pattern"),
    ("proxy.type=nginx", 'proxy.type must be one of the following: "envoy", "gatewayAPI"'),
    ("server.codecForm=onnx", 'server.codecForm must be one of the following: "tensorrt", "python"'),
    ("server.checkpoint.name=here", "server.checkpoint.name: Does not match pattern"),
    ("secrets.adminKey=short", "secrets.adminKey: Does not match pattern"),
    ("secrets.gatewayKeys={sk-secret}", "secrets.gatewayKeys.0: Does not match pattern"),
    ("secrets.voicesDsn=mysql://x", "secrets.voicesDsn: Does not match pattern"),
    ("autoscaling.min=0", "autoscaling.min: Must be greater than or equal to 1"),
    ("autoscaling.targetPercent=150", "autoscaling.targetPercent: Must be less than or equal to 100"),
    ("cache.size=lots", "cache.size: Does not match pattern"),
    ("envoy.concurrency=0", "envoy.concurrency: Must be greater than or equal to 1"),
]
# Values that the templates refuse, which compare them.
CONTRADICTIONS = [
    (MINIMAL, "preset=h100", 'preset is "h100": presets has h200, unmeasured'),
    (MINIMAL, "secrets.gatewayKeys=null", "secrets.gatewayKeys: the gateway requires API keys"),
    (MINIMAL, "secrets.existing=other", "secrets.existing: the Secret replaces adminKey"),
    (MINIMAL, "voices.store=database", "secrets.voicesDsn: voices.store database requires it"),
    (MINIMAL, "cache.type=node", "cache.path: cache.type node requires a folder"),
    (MINIMAL, "server.checkpoint.name=/checkpoint", "server.checkpoint.claim: the checkpoint /checkpoint requires"),
    (MINIMAL, "server.extraEnv.QWEN3_TTS_MAX_STREAMS=a", "settings of the engine belong to server.settings"),
    (MINIMAL, "server.extraEnv.CODEC_FORM=a", "server.extraEnv.CODEC_FORM: the chart sets this variable"),
    (MINIMAL, "proxy.type=gatewayAPI", "gatewayAPI.parentRefs: proxy.type gatewayAPI requires the Gateway"),
    (GATEWAY_API, "gateway.servers=null", "gateway.servers: proxy.type gatewayAPI requires the address"),
    (GATEWAY_API, "networkPolicy.grpcFrom=null", "networkPolicy.grpcFrom: proxy.type gatewayAPI requires the pods"),
    (OTHER, "server.replicas=2", "voices.store: a claim serves one server; use database"),
    (OTHER, "server.rollout=surge", "server.rollout: voices.store claim allows one pod at a time"),
    (FLEET, "autoscaling.min=100", "autoscaling.min is 100: it must not exceed autoscaling.max, 64"),
    (FLEET, "autoscaling.prometheus=", "autoscaling.prometheus: the address of Prometheus is required"),
    (FLEET, "autoscaling.streamsPerServer=300", "autoscaling.streamsPerServer is 300: a server has max_streams, 256"),
    (
        FLEET,
        "autoscaling.streamsPerServer=300,server.settings.max_streams=auto",
        "autoscaling.streamsPerServer is 300: a server has max_streams, 256",
    ),
    (UNMEASURED, "autoscaling.streamsPerServer=0", "preset unmeasured has no measured capacity; measure it"),
]


@pytest.mark.parametrize(("option", "message"), INVALID, ids=[option for option, _ in INVALID])
def test_a_value_outside_the_schema_is_refused_by_name(option: str, message: str) -> None:
    done = template(MINIMAL, "--set", option)
    assert done.returncode != 0
    assert message in done.stderr
    assert not done.stdout


@pytest.mark.parametrize(("values", "option", "message"), CONTRADICTIONS, ids=[c[1] for c in CONTRADICTIONS])
def test_values_that_contradict_each_other_are_refused_by_name(values: Path, option: str, message: str) -> None:
    done = helm("template", "demo", CHART, "--values", values, "--set", option)
    assert done.returncode != 0
    assert message in done.stderr
    assert not done.stdout


def test_default_values_require_a_decision_on_keys() -> None:
    done = helm("template", "demo", CHART)
    assert "secrets.gatewayKeys" in done.stderr
    assert helm("template", "demo", CHART, "--set", "gateway.auth=false").returncode == 0


def test_schema_has_the_settings_of_engine_and_gateway() -> None:
    text = (CHART / "values.schema.json").read_text()
    assert text == chart_schema.text(chart_schema.updated(SCHEMA)), "run python -m scripts.chart_schema"


def test_schema_is_valid_and_accepts_the_defaults() -> None:
    Draft7Validator.check_schema(SCHEMA)
    assert not list(Draft7Validator(SCHEMA).iter_errors(DEFAULTS))


def test_schema_and_default_values_have_the_same_names() -> None:
    missing = [name for name in names(SCHEMA) if not found(DEFAULTS, name)]
    assert not [name for name in missing if name != "global"]


def names(schema: Object, prefix: str = "") -> list[str]:
    """Dotted names of the chart's own values, without those of settings and presets."""
    result = []
    for name, inner in schema.get("properties", {}).items():
        if reference := inner.get("$ref"):
            inner = SCHEMA["definitions"][reference.rsplit("/", 1)[1]]
        result.append(prefix + name)
        if name not in ("settings", "presets"):
            result += names(inner, f"{prefix}{name}.")
    return result


def found(values: Object, name: str) -> bool:
    first, _, rest = name.partition(".")
    return first in values and (not rest or found(values[first], rest))


def test_every_default_is_allowed_to_change() -> None:
    known = set(names(SCHEMA))
    assert not [name for name in leaves(DEFAULTS) if name not in known and not name.startswith("presets.")]


def leaves(values: Object, prefix: str = "") -> list[str]:
    result = []
    for name, value in values.items():
        inner = isinstance(value, dict) and f"{prefix}{name}" in PARENTS
        result += leaves(value, f"{prefix}{name}.") if inner else [prefix + name]
    return result


PARENTS = {name.rpartition(".")[0] for name in names(SCHEMA)}


def test_documented_values_exist() -> None:
    section = PAGE.read_text().split("## Values that matter")[1].split("\n## ")[0]
    documented = re.findall(r"^\| `([\w.]+)`", section, re.MULTILINE)
    assert len(documented) > 15
    assert not [name for name in documented if not found(DEFAULTS, name)]


@pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)
def test_notes_name_objects_of_the_release(values: Path, tmp_path: Path) -> None:
    """`helm template` leaves the notes out, so a template of a copy includes them."""
    chart = shutil.copytree(CHART, tmp_path / "chart")
    include = '{{ include (print .Template.BasePath "/NOTES.txt") . | toJson }}'
    (chart / "templates" / "copy.yaml").write_text(f"kind: Notes\nmetadata: {{name: notes}}\ntext: {include}\n")
    objects = list(yaml.safe_load_all(helm("template", "demo", chart, "--values", values).stdout))
    [notes] = [found["text"] for found in objects if found["kind"] == "Notes"]
    named = set(re.findall(r"(deployment|service)/(\S+)", notes))
    assert named <= {(found["kind"].lower(), found["metadata"]["name"]) for found in objects}
    assert ("rollout status" in notes, "%!" in notes) == (True, False)
