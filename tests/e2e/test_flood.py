"""Refusals and cancels at several hundred a second, for a few seconds: `python -m tests.flood` goes on for longer."""

from pathlib import Path

import pytest

from tests.e2e.serving import serve
from tests.flood.__main__ import REPOSITORY, Flood, Kind, environment_of

STREAMS, CALLERS = 1500, 16


@pytest.mark.parametrize("kind", [Kind.REFUSE, Kind.CANCEL])
def test_tritonserver_lives_through_a_flood(kind: Kind, tmp_path: Path) -> None:
    flood = Flood(kind, STREAMS)
    # Triton 2.51 forgets the end of some that hang up just as they begin, and would wait for them.
    with serve(REPOSITORY, tmp_path, environment_of(), ("--exit-timeout-secs=3",)) as server:
        assert flood.run(server, CALLERS) is None
    assert flood.done == STREAMS
