"""Envoy in front of several servers: its configuration and its list of servers.

    python -m scripts.server.fleet.envoy

writes docker/envoy/envoy.json, the configuration of the compose profile. docs/fleet.md, The proxy, has the reasons of
all settings.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

COMPOSE_FILE = Path(__file__).parents[3] / "docker" / "envoy" / "envoy.json"
COMPOSE_SERVERS = ("server", "server-1")
CLUSTER = "qwen3_tts"
SERVICE = "/inference.GRPCInferenceService/"
READY = "/v2/models/qwen3_tts/ready"
# Two failed checks, or one failed connection, take a server out: half a second after its death.
HEALTH_INTERVAL = "0.25s"
HEALTH_TIMEOUT = "1s"
UNHEALTHY_CHECKS = 2
CONNECT_TIMEOUT = "0.5s"
EJECTION = "1s"
NONE = "0s"
# Beyond what one host serves; the servers themselves refuse with UNAVAILABLE.
UNLIMITED = 1_000_000
MAX_STREAMS = 65_536
# A stream sends 48 000 B a second. The server may be ahead of a slow listener by 1.4 s of audio.
STREAM_WINDOW = 65_536
# Too large for the windows of slow listeners to fill the connection that they share with others: 4 096 of them.
CONNECTION_WINDOW = 268_435_456
# The proxy's window for uploads of references.
UPLOAD_WINDOW = 1_048_576
Json = dict[str, Any]


@dataclass(frozen=True)
class Endpoint:
    grpc_port: int
    http_port: int
    host: str = "127.0.0.1"
    is_draining: bool = False
    """Gets no new streams, and keeps those that it has."""


def static_config(endpoints: Iterable[Endpoint], address: str, port: int, admin_port: int) -> Json:
    """The configuration for a fixed list of servers by DNS name."""
    cluster = _cluster() | {"type": "STRICT_DNS", "load_assignment": load_assignment(endpoints)}
    return _bootstrap(cluster, address, port, admin_port)


def watched_config(endpoints_file: Path, address: str, port: int, admin_port: int) -> Json:
    """The configuration for servers listed in a file (`endpoints_text`), which Envoy rereads when it is replaced."""
    source = {"path_config_source": {"path": str(endpoints_file)}, "resource_api_version": "V3"}
    cluster = _cluster() | {"type": "EDS", "eds_cluster_config": {"eds_config": source}}
    return _bootstrap(cluster, address, port, admin_port)


def endpoints_text(endpoints: Iterable[Endpoint]) -> str:
    kind = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
    return json.dumps({"resources": [{"@type": kind} | load_assignment(endpoints)]})


def load_assignment(endpoints: Iterable[Endpoint]) -> Json:
    return {"cluster_name": CLUSTER, "endpoints": [{"lb_endpoints": [_lb_endpoint(one) for one in endpoints]}]}


def _lb_endpoint(endpoint: Endpoint) -> Json:
    listed: Json = {
        "endpoint": {
            "address": _address(endpoint.host, endpoint.grpc_port),
            # Triton's gRPC health service covers the server, not the model.
            "health_check_config": {"port_value": endpoint.http_port},
        }
    }
    return listed | ({"health_status": "DRAINING"} if endpoint.is_draining else {})


def _bootstrap(cluster: Json, address: str, port: int, admin_port: int) -> Json:
    return {
        "node": {"id": "fleet", "cluster": CLUSTER},
        "admin": {"address": _address("127.0.0.1", admin_port)},
        "static_resources": {"listeners": [_listener(address, port)], "clusters": [cluster]},
    }


def _listener(address: str, port: int) -> Json:
    manager = {
        "stat_prefix": CLUSTER,
        "codec_type": "HTTP2",
        "http2_protocol_options": {
            "max_concurrent_streams": MAX_STREAMS,
            "initial_stream_window_size": UPLOAD_WINDOW,
            "initial_connection_window_size": CONNECTION_WINDOW,
        },
        # Streams wait for text, for audio and for slow listeners.
        "stream_idle_timeout": NONE,
        "request_timeout": NONE,
        "generate_request_id": False,
        "route_config": {"name": CLUSTER, "virtual_hosts": [{"name": CLUSTER, "domains": ["*"], "routes": [_route()]}]},
        "http_filters": [_extension("envoy.filters.http.router", "envoy.extensions.filters.http.router.v3.Router")],
    }
    return {
        "name": "grpc",
        "address": _address(address, port),
        # Otherwise a worker may get most of a few connections.
        "connection_balance_config": {"exact_balance": {}},
        "filter_chains": [
            {
                "filters": [
                    _extension(
                        "envoy.filters.network.http_connection_manager",
                        "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
                        **manager,
                    )
                ]
            }
        ],
    }


def _route() -> Json:
    return {
        "match": {"prefix": SERVICE, "grpc": {}},
        "route": {
            "cluster": CLUSTER,
            "timeout": NONE,
            "idle_timeout": NONE,
            "retry_policy": {
                # No server has seen a request of these kinds.
                "retry_on": "connect-failure,refused-stream,reset-before-request",
                "num_retries": 2,
                "retry_back_off": {"base_interval": "0.005s", "max_interval": "0.02s"},
                "retry_host_predicate": [
                    _extension(
                        "envoy.retry_host_predicates.previous_hosts",
                        "envoy.extensions.retry.host.previous_hosts.v3.PreviousHostsPredicate",
                    )
                ],
                "host_selection_retry_max_attempts": 5,
            },
        },
    }


def _cluster() -> Json:
    """The cluster without its servers."""
    limits = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
    http = {
        "explicit_http_config": {
            "http2_protocol_options": {
                "max_concurrent_streams": MAX_STREAMS,
                "initial_stream_window_size": STREAM_WINDOW,
                "initial_connection_window_size": CONNECTION_WINDOW,
            }
        }
    }
    options = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
    return {
        "name": CLUSTER,
        "connect_timeout": CONNECT_TIMEOUT,
        "load_balancing_policy": {
            "policies": [
                {
                    "typed_extension_config": _extension(
                        "envoy.load_balancing_policies.least_request",
                        "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest",
                        selection_method="FULL_SCAN",
                    )
                }
            ]
        },
        "common_lb_config": {
            # Never send streams to servers that are known to be down, not even if most are.
            "healthy_panic_threshold": {"value": 0},
            # Otherwise the workers learn of a change up to a second late.
            "update_merge_window": NONE,
        },
        "health_checks": [_health_check()],
        "outlier_detection": _outlier_detection(),
        "circuit_breakers": {"thresholds": [dict.fromkeys(limits, UNLIMITED)]},
        "typed_extension_protocol_options": {options: _typed(options, **http)},
    }


def _health_check() -> Json:
    intervals = (
        "interval", "no_traffic_interval", "no_traffic_healthy_interval",
        "unhealthy_interval", "unhealthy_edge_interval", "healthy_edge_interval",
    )  # fmt: skip
    return dict.fromkeys(intervals, HEALTH_INTERVAL) | {
        "timeout": HEALTH_TIMEOUT,
        "unhealthy_threshold": UNHEALTHY_CHECKS,
        "healthy_threshold": 1,
        # At its end Triton waits 30 s for open HTTP connections.
        "reuse_connection": False,
        "http_health_check": {"path": READY},
    }


def _outlier_detection() -> Json:
    """Ejects a server after one failed connection, and never for its answers: UNAVAILABLE is one of a busy server."""
    return {
        "split_external_local_origin_errors": True,
        "consecutive_local_origin_failure": 1,
        "enforcing_consecutive_local_origin_failure": 100,
        "enforcing_local_origin_success_rate": 0,
        "enforcing_consecutive_5xx": 0,
        "enforcing_consecutive_gateway_failure": 0,
        "enforcing_success_rate": 0,
        "base_ejection_time": EJECTION,
        "max_ejection_time": EJECTION,
        "interval": HEALTH_INTERVAL,
        "max_ejection_percent": 100,
    }


def _address(host: str, port: int) -> Json:
    return {"socket_address": {"address": host, "port_value": port}}


def _extension(name: str, kind: str, **fields: Any) -> Json:
    return {"name": name, "typed_config": _typed(kind, **fields)}


def _typed(kind: str, **fields: Any) -> Json:
    return {"@type": f"type.googleapis.com/{kind}", **fields}


def compose_text() -> str:
    endpoints = [Endpoint(8001, 8000, host) for host in COMPOSE_SERVERS]
    return json.dumps(static_config(endpoints, "0.0.0.0", 8001, 9901), indent=2) + "\n"


if __name__ == "__main__":
    COMPOSE_FILE.parent.mkdir(parents=True, exist_ok=True)
    COMPOSE_FILE.write_text(compose_text())
