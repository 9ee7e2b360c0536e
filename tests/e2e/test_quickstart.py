"""`scripts/quickstart.sh --serve` ends with a page that speaks."""

import re
import signal
import subprocess
from pathlib import Path

import httpx

from scripts.embedded.ports import Ports
from tests.e2e.serving import ROOT
from tests.e2e.test_readme import DEFAULT_PORTS, port_is_free

OPEN = re.compile(r"Open (http://localhost:\d+) ")
STOP_SECONDS = 60


def test_quickstart_serves_a_page_until_it_is_interrupted(tmp_path: Path) -> None:
    assert all(port_is_free(port) for port in DEFAULT_PORTS), "a default port is already in use"
    port, output = Ports.free().http, tmp_path / "hello.wav"
    command = ["scripts/quickstart.sh", "--serve", "--port", str(port), "--output", str(output)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        try:
            url = next(found[1] for line in process.stdout if (found := OPEN.search(line)))
            assert url == f"http://localhost:{port}"
            assert "<title>Qwen3-TTS</title>" in httpx.get(url).text
            spoken = httpx.post(f"{url}/v1/audio/speech", json={"input": "Hello.", "max_new_tokens": 5}, timeout=30)
            assert spoken.status_code == 200
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(STOP_SECONDS)
    assert process.returncode == 0
    assert output.stat().st_size > 1920 * 2
    assert all(port_is_free(used) for used in (*DEFAULT_PORTS, port))
