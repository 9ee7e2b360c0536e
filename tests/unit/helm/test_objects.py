"""The rendered objects are valid, in the oldest and the newest release of Kubernetes, and refer to each other."""

import json
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import kubernetes_validate
import pytest
import yaml
from jsonschema import Draft202012Validator, ValidationError

from tests.unit.helm.chart import CHART, FLEET, GATEWAY_API, MINIMAL, ROOT, VALUES, Object, helm, of_kind, one, render
from tests.unit.helm.custom_resources import SCHEMAS

METADATA = yaml.safe_load((CHART / "Chart.yaml").read_text())
OLDEST = METADATA["kubeVersion"].removeprefix(">=").split("-")[0]
RELEASES = (OLDEST, kubernetes_validate.latest_version())
HELM4 = Path(__file__).with_name("helm4.py")
INFO = 1  # severity of Helm's lint messages
every_values_file = pytest.mark.parametrize("values", VALUES, ids=lambda path: path.stem)


@every_values_file
def test_chart_passes_the_linter(values: Path) -> None:
    linted = helm("lint", "--strict", "--values", values, CHART)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@every_values_file
def test_chart_passes_the_linter_of_helm_4(values: Path, tmp_path: Path) -> None:
    chart = shutil.copytree(CHART, tmp_path / "chart")  # links become files
    defaults, changes = (yaml.safe_load(path.read_text()) for path in (CHART / "values.yaml", values))
    (chart / "values.yaml").write_text(yaml.safe_dump(merged(defaults, changes)))
    assert max(lint_by_helm_4(chart)) <= INFO


def test_linter_of_helm_4_sees_errors(tmp_path: Path) -> None:
    chart = shutil.copytree(CHART, tmp_path / "chart")
    (chart / "templates" / "broken.yaml").write_text("{{ nothing }}")
    assert max(lint_by_helm_4(chart)) > INFO


def lint_by_helm_4(chart: Path) -> list[int]:
    """Severities of the messages."""
    done = subprocess.run([sys.executable, HELM4, chart], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [message["Severity"] for message in json.loads(done.stdout)["Messages"]]


def merged(values: Object, changes: Object) -> Object:
    both = {
        name: merged(values[name], changes[name]) for name in values.keys() & changes.keys() if nested(values[name])
    }
    return values | changes | both


def nested(value: object) -> bool:
    return isinstance(value, dict)


def validate(found: Object, release: str) -> None:
    if found["kind"] in SCHEMAS:
        Draft202012Validator(SCHEMAS[found["kind"]]).validate(found)
    else:
        kubernetes_validate.validate(found, release, strict=True)


@every_values_file
@pytest.mark.parametrize("release", RELEASES)
def test_objects_are_valid(values: Path, release: str) -> None:
    for found in render(values):
        validate(found, release)


@pytest.mark.parametrize("kind", ["Deployment", "ScaledObject", "ServiceMonitor"])
def test_an_object_with_an_unknown_field_is_not_valid(kind: str) -> None:
    found = of_kind(render(FLEET), kind)[0]
    with pytest.raises(ValidationError, match="replica"):
        validate(found | {"spec": found["spec"] | {"replica": 3}}, OLDEST)


def test_value_files_render_every_kind_of_custom_resource() -> None:
    kinds = {found["kind"] for values in VALUES for found in render(values)}
    assert SCHEMAS.keys() <= kinds


@every_values_file
def test_names_are_unique_and_begin_with_the_release(values: Path) -> None:
    objects = render(values)
    names = [(found["kind"], found["metadata"]["name"]) for found in objects]
    assert len(set(names)) == len(names)
    prefix = one(objects, "Deployment", "server")["metadata"]["name"].removesuffix("-server")
    assert all(name.startswith(prefix) for _, name in names)


def test_names_fit_labels_with_a_long_release_name() -> None:
    done = helm("template", "r" * 53, CHART, "--values", FLEET)
    names = [found["metadata"]["name"] for found in yaml.safe_load_all(done.stdout)]
    assert max(map(len, names)) <= 63


def pod_labels(objects: list[Object]) -> list[tuple[Object, Object]]:
    """Labels and container ports by name, of each kind of pod."""
    templates = [found["spec"]["template"] for found in of_kind(objects, "Deployment")]
    return [
        (template["metadata"]["labels"], {port["name"]: port for port in template["spec"]["containers"][0]["ports"]})
        for template in templates
    ]


def selected(objects: list[Object], labels: Object) -> Object:
    """The container ports of the one kind of pod with these labels."""
    [ports] = [ports for found, ports in pod_labels(objects) if labels.items() <= found.items()]
    return ports


@every_values_file
def test_selectors_select_one_kind_of_pod_and_its_ports(values: Path) -> None:
    objects = render(values)
    for service in of_kind(objects, "Service"):
        ports = selected(objects, service["spec"]["selector"])
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports.keys()
    for deployment in of_kind(objects, "Deployment"):
        assert selected(objects, deployment["spec"]["selector"]["matchLabels"])
    for budget in of_kind(objects, "PodDisruptionBudget"):
        assert selected(objects, budget["spec"]["selector"]["matchLabels"])
    for policy in of_kind(objects, "NetworkPolicy"):
        ports = selected(objects, policy["spec"]["podSelector"]["matchLabels"])
        assert {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]} <= ports.keys()


@every_values_file
def test_every_deployment_has_a_disruption_budget(values: Path) -> None:
    objects = render(values)
    budgets = [found["spec"]["selector"] for found in of_kind(objects, "PodDisruptionBudget")]
    assert [found["spec"]["selector"] for found in of_kind(objects, "Deployment")] == budgets


def test_service_monitors_select_one_service_and_its_port() -> None:
    objects = render(FLEET)
    for monitor in of_kind(objects, "ServiceMonitor"):
        labels = monitor["spec"]["selector"]["matchLabels"].items()
        [service] = [s for s in of_kind(objects, "Service") if labels <= s["metadata"]["labels"].items()]
        [endpoint] = monitor["spec"]["endpoints"]
        assert endpoint["port"] in {port["name"] for port in service["spec"]["ports"]}
    assert len(of_kind(objects, "ServiceMonitor")) == 3


@every_values_file
def test_volumes_secrets_and_claims_exist(values: Path) -> None:
    objects = render(values)
    made = {(found["kind"], found["metadata"]["name"]) for found in objects}
    given = yaml.safe_load(values.read_text())
    server = given.get("server", {})
    claims = {given.get("cache", {}).get("claim"), server.get("checkpoint", {}).get("claim")}
    for deployment in of_kind(objects, "Deployment"):
        pod = deployment["spec"]["template"]["spec"]
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in [*pod.get("initContainers", []), *pod["containers"]]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
        for volume in pod["volumes"]:
            if claim := volume.get("persistentVolumeClaim"):
                assert ("PersistentVolumeClaim", claim["claimName"]) in made or claim["claimName"] in claims
            if config := volume.get("configMap"):
                assert ("ConfigMap", config["name"]) in made


def test_traffic_reaches_the_servers_through_the_proxy_alone() -> None:
    for values, proxies in ((MINIMAL, {"envoy"}), (GATEWAY_API, set())):
        policy = one(render(values), "NetworkPolicy", "server")["spec"]
        speech = [rule for rule in policy["ingress"] if {"port": "grpc"} in rule["ports"]]
        labels = [peer.get("podSelector", {}).get("matchLabels", {}) for rule in speech for peer in rule["from"]]
        assert policy["policyTypes"] == ["Ingress"]
        assert {found["app.kubernetes.io/component"] for found in labels if found} == proxies


def test_no_rule_allows_all_by_an_empty_list() -> None:
    objects = render(MINIMAL, "--set", "networkPolicy.monitoringFrom=null")
    for component in ("server", "envoy"):
        rules = one(objects, "NetworkPolicy", component)["spec"]["ingress"]
        assert [bool(rule.get("from")) for rule in rules] == [True]


def test_grpc_route_leads_to_the_servers_without_their_management() -> None:
    objects = render(GATEWAY_API)
    [route] = of_kind(objects, "GRPCRoute")
    methods = {match["method"]["method"] for rule in route["spec"]["rules"] for match in rule["matches"]}
    assert {"ModelStreamInfer", "ModelReady"} <= methods
    assert not [method for method in methods if re.search("Repository|Memory|Trace|Log", method)]
    backends = {(ref["name"], ref["port"]) for rule in route["spec"]["rules"] for ref in rule["backendRefs"]}
    service = one(objects, "Service", "grpc")
    assert backends == {(service["metadata"]["name"], port["port"]) for port in service["spec"]["ports"]}
    assert not of_kind(render(MINIMAL), "GRPCRoute")


def test_dashboard_is_that_of_the_repository_in_charts_and_packages(tmp_path: Path) -> None:
    original = (ROOT / "docker" / "grafana" / "dashboard.json").read_text()
    assert (CHART / "files" / "dashboard.json").is_symlink()
    shown = one(render(FLEET), "ConfigMap", "dashboard")["data"]["qwen3-tts.json"]
    assert json.loads(shown) == json.loads(original)
    assert helm("package", CHART, "--destination", tmp_path).returncode == 0
    [package] = tmp_path.glob("*.tgz")
    with tarfile.open(package) as archive:
        packed = archive.extractfile("qwen3-tts/files/dashboard.json")
        assert packed is not None
        assert packed.read().decode() == original
        assert not [name for name in archive.getnames() if "/ci/" in name]
