"""Runs scripts.soak for three minutes and checks its record."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.serving import ROOT

pytestmark = pytest.mark.long

MINUTES = 3
# Allowed growth of all processes together, mostly of Python's own caches.
GROWTH_MIB = 100


@pytest.mark.timeout(900)
def test_soak_has_no_hung_mixed_or_leaked_requests(tmp_path: Path) -> None:
    output = tmp_path / "soak.json"
    command = [sys.executable, "-m", "scripts.soak", f"--minutes={MINUTES}", f"--folder={tmp_path}"]
    done = subprocess.run([*command, f"--output={output}"], cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout, done.stderr)
    record = json.loads(output.read_text())
    assert (record["hung"], record["mixed"], record["wrong_outcome"], done.returncode) == (0, 0, 0, 0)
    assert record["restarts"] >= 1
    assert set(record["faults"]) >= {"codec error", "out of memory"}
    assert record["requests"] > 300
    assert record["rss_mib_after"] < record["rss_mib_before"] + GROWTH_MIB
    assert record["fds_after"] <= record["fds_before"] + 5
    # Triton 2.51 keeps some connections of clients that are gone: 7 more after 20 s.
    assert record["sockets_after"] <= record["sockets_before"] + 20
    assert record["threads_after"] <= record["threads_before"] + 5
