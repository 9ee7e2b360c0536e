"""What scripts/quickstart.py finds out before it builds anything."""

import socket
from pathlib import Path
from typing import Any

import pytest

from scripts import quickstart
from scripts.server.ports import Ports


@pytest.mark.parametrize("taken", ["grpc_port", "http_port", "metrics_port", "port"])
def test_a_taken_port_is_named_first(taken: str, tmp_path: Path) -> None:
    free = Ports.free()
    ports: dict[str, Any] = {"grpc_port": free.grpc, "http_port": free.http, "metrics_port": free.metrics}
    ports["port"] = Ports.free().http
    with (
        socket.create_server(("127.0.0.1", ports[taken])),
        pytest.raises(SystemExit, match=rf"port {ports[taken]}: Address already in use, by .* another --\w+"),
    ):
        quickstart.main(build_folder=tmp_path / "build", serve=True, **ports)
    assert not (tmp_path / "build").exists()
