"""What Envoy's admin interface says of the servers."""

import json
from typing import Any

from scripts.server.drain import LOCAL


def hosts(admin_port: int) -> list[dict[str, Any]]:
    with LOCAL.open(f"http://127.0.0.1:{admin_port}/clusters?format=json") as page:
        [cluster] = json.load(page)["cluster_statuses"]
    return list(cluster["host_statuses"])


def healthy(admin_port: int) -> list[int]:
    """gRPC ports of the servers that Envoy chooses from."""
    return [
        host["address"]["socket_address"]["port_value"]
        for host in hosts(admin_port)
        if host["health_status"] == {"eds_health_status": "HEALTHY"}
    ]


def counts(admin_port: int, name: str) -> list[int]:
    """A counter or gauge of each server, such as rq_active or rq_total."""
    stats = [{stat["name"]: int(stat.get("value", 0)) for stat in host["stats"]} for host in hosts(admin_port)]
    return [one[name] for one in stats]
