"""What differs between releases of Triton, in one table."""

import json
import urllib.request
from typing import NamedTuple

from scripts.server.ports import Ports


class Release(NamedTuple):
    is_ready_asks_models: bool
    """Whether /v2/health/ready asks every model, or only whether all are loaded."""
    unknown_model: int
    """HTTP status of the readiness of a model that does not exist."""
    shared_memory: int
    """HTTP status of a caller's own shared memory, with the admin key, unless --allow-client-shm is given."""


# Behaviour by its first version. 2.73 is the main branch of August 2026, near release 26.09; between the two is
# untried.
RELEASES = {(2, 51): Release(False, 400, 200), (2, 73): Release(True, 404, 501)}


def release_of(ports: Ports) -> Release:
    """The behaviour of a running server."""
    with urllib.request.urlopen(f"http://localhost:{ports.http}/v2", timeout=60) as response:
        major, minor, *_ = json.load(response)["version"].split(".")
    return RELEASES[max(known for known in RELEASES if known <= (int(major), int(minor)))]
