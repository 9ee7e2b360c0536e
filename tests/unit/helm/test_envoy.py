"""Envoy accepts the chart's configuration, and spreads, withholds and finishes streams by it."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
import yaml
from tritonclient.grpc import service_pb2, service_pb2_grpc

from qwen3_tts_client.protocol import SpeechRequest, encode
from scripts.server.fleet.envoy import Endpoint, static_config
from tests.unit.helm.chart import CHART, NAMESPACE, VALUES, container, one, pod_of, render
from tests.unit.helm.proxy import ENVOY, SERVICE, NameServer, Proxy, Server, configuration, get, running

pytestmark = pytest.mark.long

WITH_ENVOY = [values for values in VALUES if "gatewayAPI" not in values.read_text()]
DRAIN = CHART / "files" / "drain_envoy.sh"
CALL_SECONDS = 60
SERVER = Endpoint(8001, 8000)
CLUSTER_POLICIES = (
    "connect_timeout", "load_balancing_policy", "common_lb_config", "outlier_detection", "circuit_breakers",
    "typed_extension_protocol_options",
)  # fmt: skip
MANAGER_POLICIES = (
    "codec_type", "http2_protocol_options", "stream_idle_timeout", "request_timeout", "generate_request_id",
)  # fmt: skip
ROUTE_POLICIES = ("timeout", "idle_timeout", "retry_policy")
Stub: TypeAlias = service_pb2_grpc.GRPCInferenceServiceStub
HANGING = json.dumps({"chunks": [[0, 1]], "hang": True})


@pytest.mark.parametrize("values", WITH_ENVOY, ids=lambda path: path.stem)
def test_envoy_accepts_the_configuration_without_deprecated_fields(values: Path, tmp_path: Path) -> None:
    file = tmp_path / "envoy.yaml"
    file.write_text(one(render(values), "ConfigMap", "envoy")["data"]["envoy.yaml"])
    done = subprocess.run([ENVOY, "--mode", "validate", "--config-path", file], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "eprecated" not in done.stderr


def test_envoy_of_the_chart_is_the_tested_one() -> None:
    shown = subprocess.run([ENVOY, "--version"], capture_output=True, text=True).stdout
    [version] = re.findall(r"version: \w+/([\d.]+)/", shown)
    assert yaml.safe_load((CHART / "values.yaml").read_text())["envoy"]["image"]["tag"] == f"v{version}"


def test_envoy_resolves_the_headless_service_and_probes_the_model() -> None:
    objects = render(WITH_ENVOY[0])
    resources = configuration(WITH_ENVOY[0])["static_resources"]
    [endpoint] = resources["clusters"][0]["load_assignment"]["endpoints"][0]["lb_endpoints"]
    address = endpoint["endpoint"]["address"]["socket_address"]
    service = one(objects, "Service", "server")
    assert service["spec"]["clusterIP"] == "None"
    assert address["address"] == SERVICE == f"{service['metadata']['name']}.{NAMESPACE}.svc.cluster.local."
    probe = container(objects, "server")["readinessProbe"]["httpGet"]
    [check] = resources["clusters"][0]["health_checks"]
    assert check["http_health_check"]["path"] == probe["path"]
    ports = {port["name"]: port["containerPort"] for port in container(objects, "server")["ports"]}
    assert address["port_value"] == ports["grpc"]
    assert endpoint["endpoint"]["health_check_config"]["port_value"] == ports[probe["port"]]


def test_streams_have_no_time_limit() -> None:
    """The servers have: sequence_idle_seconds, max_frames_limit."""
    listener = configuration()["static_resources"]["listeners"][0]
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    routes = [route["route"] for route in manager["route_config"]["virtual_hosts"][0]["routes"]]
    limits = [(route["timeout"], route["idle_timeout"]) for route in routes]
    assert limits == [("0s", "0s")] * len(routes)
    assert (manager["stream_idle_timeout"], manager["request_timeout"]) == ("0s", "0s")
    assert "max_stream_duration" not in str(listener)


def test_the_policy_is_that_of_the_fleet_of_one_host() -> None:
    """Compares what both configure; names, addresses and the discovery of servers differ."""
    chart, fleet = (policies(config) for config in (configuration(), static_config([SERVER], "0.0.0.0", 8001, 9901)))
    for name, policy in chart.items():
        assert agree(policy, fleet[name]), name


def policies(config: dict[str, Any]) -> dict[str, Any]:
    cluster, manager = config["static_resources"]["clusters"][0], manager_of(config)
    route = manager["route_config"]["virtual_hosts"][0]["routes"][0]["route"]
    named = ((cluster, CLUSTER_POLICIES), (manager, MANAGER_POLICIES), (route, ROUTE_POLICIES))
    return {name: where[name] for where, names in named for name in names} | {"health": cluster["health_checks"][0]}


def manager_of(config: dict[str, Any]) -> dict[str, Any]:
    listener = config["static_resources"]["listeners"][0]
    manager: dict[str, Any] = listener["filter_chains"][0]["filters"][0]["typed_config"]
    return manager


def agree(ours: Any, theirs: Any) -> bool:
    """Equal, in dictionaries what both have."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        return all(agree(ours[key], theirs[key]) for key in ours.keys() & theirs.keys())
    return bool(ours == theirs)


def test_ports_and_probes_of_the_pod_are_those_of_the_listeners() -> None:
    envoy = container(render(WITH_ENVOY[0]), "envoy")
    ports = {port["name"]: port["containerPort"] for port in envoy["ports"]}
    config = configuration(WITH_ENVOY[0])
    listeners = {found["name"]: found["address"]["socket_address"] for found in config["static_resources"]["listeners"]}
    assert {name: found["port_value"] for name, found in listeners.items()} == ports
    assert {found["address"] for found in listeners.values()} == {"0.0.0.0"}
    assert config["admin"]["address"]["socket_address"]["address"] == "127.0.0.1"
    assert envoy["readinessProbe"]["httpGet"] == {"path": "/ready", "port": "status"}


def test_pod_mounts_what_its_command_and_hook_name() -> None:
    objects = render(WITH_ENVOY[0])
    envoy, pod = container(objects, "envoy"), pod_of(objects, "envoy")
    [mount] = envoy["volumeMounts"]
    files = {f"{mount['mountPath']}/{name}" for name in one(objects, "ConfigMap", "envoy")["data"]}
    hook = envoy["lifecycle"]["preStop"]["exec"]["command"]
    assert {envoy["args"][1], hook[1]} == files
    assert pod["terminationGracePeriodSeconds"] > int(hook[2])


def test_drain_script_passes_shellcheck() -> None:
    linted = subprocess.run([Path(sys.executable).parent / "shellcheck", DRAIN], capture_output=True, text=True)
    assert (linted.returncode, linted.stdout) == (0, "")


def stub_of(channel: grpc.Channel) -> Stub:
    return service_pb2_grpc.GRPCInferenceServiceStub(channel)


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    with ExitStack() as stack:
        yield [Server(stack) for _ in range(3)]


@pytest.fixture
def proxy(servers: list[Server], tmp_path: Path) -> Iterator[Proxy]:
    with running(servers, tmp_path) as proxy:
        proxy.wait(lambda: proxy.healthy() == len(servers))
        yield proxy


@pytest.fixture
def stub(proxy: Proxy) -> Iterator[Stub]:
    with grpc.insecure_channel(proxy.url) as channel:
        yield stub_of(channel)


def speak(stub: Stub, text: str = "Hello.") -> Iterator[object]:
    """The responses of a stream; after its first one the stream has a server."""
    return iter(stub.ModelStreamInfer(iter([encode(SpeechRequest(text))]), timeout=CALL_SECONDS))


def outcome(stub: Stub) -> str:
    try:
        list(speak(stub))
    except grpc.RpcError as error:
        return str(error.code().name)
    return "OK"


def reached(stub: Stub, servers: list[Server], calls: int = 20) -> set[int]:
    """Servers that get short streams, one after the other: each that is ready, since ties are broken at random."""
    before = [len(server.stub.servicer.received) for server in servers]
    for _ in range(calls):
        assert list(speak(stub))
    after = [len(server.stub.servicer.received) for server in servers]
    return {number for number, count in enumerate(after) if count > before[number]}


def running_streams(servers: list[Server]) -> list[int]:
    return [server.stub.servicer.running for server in servers]


def test_servers_come_and_go_with_the_addresses_of_the_service(servers: list[Server], tmp_path: Path) -> None:
    names = NameServer(SERVICE.rstrip("."), [])
    with running(servers[:1], tmp_path, names) as proxy, grpc.insecure_channel(proxy.url) as channel:
        assert proxy.healthy() == 0
        names.addresses = ["127.0.0.1"]
        proxy.wait(lambda: proxy.healthy() == 1)
        call = speak(stub_of(channel), HANGING)
        next(call)
        names.addresses = ["127.0.0.3"]
        proxy.wait(lambda: "127.0.0.1" not in get(f"{proxy.admin}/clusters?filter=servers")[1])
        assert running_streams(servers[:1]) == [1], "a stream outlives its server's place in the Service"
    assert names.asked == {SERVICE.rstrip(".")}, "no search domains"


def test_streams_go_to_the_server_with_the_fewest(servers: list[Server], proxy: Proxy, stub: Stub) -> None:
    proxy.wait(lambda: reached(stub, servers) == {0, 1, 2})
    calls = [speak(stub, HANGING) for _ in range(12)]
    for call in calls:
        next(call)
    assert running_streams(servers) == [4, 4, 4]


def test_new_streams_go_to_ready_servers_and_others_finish(servers: list[Server], proxy: Proxy, stub: Stub) -> None:
    proxy.wait(lambda: reached(stub, servers) == {0, 1, 2})
    calls = [speak(stub, HANGING) for _ in servers]
    for call in calls:
        next(call)
    servers[0].is_ready = servers[1].is_ready = False
    proxy.wait(lambda: reached(stub, servers) == {2})
    assert running_streams(servers) == [1, 1, 1]
    servers[0].is_ready = True
    proxy.wait(lambda: reached(stub, servers) == {0, 2})


def test_calls_are_unavailable_while_no_server_is_ready(servers: list[Server], proxy: Proxy, stub: Stub) -> None:
    for server in servers:
        server.is_ready = False
    proxy.wait(lambda: outcome(stub) == "UNAVAILABLE")
    before = [len(server.stub.servicer.received) for server in servers]
    assert outcome(stub) == "UNAVAILABLE"
    assert [len(server.stub.servicer.received) for server in servers] == before
    servers[1].is_ready = True
    proxy.wait(lambda: outcome(stub) == "OK")


def test_model_management_is_not_served(proxy: Proxy, stub: Stub) -> None:
    assert stub.ModelReady(service_pb2.ModelReadyRequest(name="qwen3_tts"), timeout=CALL_SECONDS).ready
    with pytest.raises(grpc.RpcError) as refused:
        stub.RepositoryIndex(service_pb2.RepositoryIndexRequest(), timeout=CALL_SECONDS)
    assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_other_machines_see_readiness_and_metrics_of_the_admin_interface_alone(proxy: Proxy) -> None:
    assert get(f"{proxy.status}/ready") == (200, "LIVE\n")
    status, metrics = get(f"{proxy.status}/stats/prometheus")
    assert status == 200
    assert "envoy_cluster_membership_healthy" in metrics
    assert {get(f"{proxy.status}/{path}")[0] for path in ("config_dump", "clusters", "quitquitquit", "stats")} == {404}


def test_drain_waits_for_the_last_stream_and_moves_clients_on(servers: list[Server], proxy: Proxy, stub: Stub) -> None:
    call = stub.ModelStreamInfer(iter([encode(SpeechRequest(HANGING))]), timeout=CALL_SECONDS)
    next(call)
    command = ["bash", str(DRAIN), str(CALL_SECONDS), str(proxy.admin_port)]
    with subprocess.Popen(command) as drain:
        proxy.wait(lambda: get(f"{proxy.status}/ready")[0] == 503)
        with grpc.insecure_channel(proxy.url) as channel:
            assert list(speak(stub_of(channel))), "what comes to a draining proxy is served"
        proxy.wait(lambda: proxy.count("http.grpc.downstream_cx_drain_close") == 1)
        with pytest.raises(subprocess.TimeoutExpired):
            drain.wait(7)
        call.cancel()
        assert drain.wait(CALL_SECONDS) == 0


def test_drain_ends_at_its_limit(servers: list[Server], proxy: Proxy) -> None:
    with grpc.insecure_channel(proxy.url) as channel:
        call = speak(stub_of(channel), HANGING)
        next(call)
        done = subprocess.run(["bash", DRAIN, "6", str(proxy.admin_port)])
        assert done.returncode == 0
        assert sum(running_streams(servers)) == 1
