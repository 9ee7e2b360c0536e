"""Rejected and cancelled requests at several hundred a second; `python -m tests.flood` runs longer."""

from pathlib import Path

import pytest

from tests.e2e.serving import serve
from tests.flood.__main__ import REPOSITORY, Flood, Kind, environment_of

pytestmark = pytest.mark.long

STREAMS, CALLERS = 1500, 16


@pytest.mark.parametrize("kind", [Kind.REFUSE, Kind.CANCEL])
def test_tritonserver_survives_a_flood(kind: Kind, tmp_path: Path) -> None:
    flood = Flood(kind, STREAMS)
    # Triton 2.51 loses the end of some streams cancelled at their start, and shutdown waits for them.
    with serve(REPOSITORY, tmp_path, environment_of(), ()) as server:
        assert flood.run(server, CALLERS) is None
    assert flood.done == STREAMS
