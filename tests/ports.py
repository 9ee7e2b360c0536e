"""Ports for processes that tests start."""

import random
import socket

# Below the ports that the system assigns.
PORTS = range(10_000, 32_000)


def free_ports(count: int) -> list[int]:
    """Consecutive ports of localhost that are free now."""
    while True:
        first = random.choice(PORTS)
        if all(map(is_free, range(first, first + count))):
            return list(range(first, first + count))


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
