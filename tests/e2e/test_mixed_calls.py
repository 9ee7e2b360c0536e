"""scripts.benchmarks.mixed_calls accepts the right codec and rejects every response of another one."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from scripts.benchmarks.mixed_calls import main
from scripts.server.tritonserver import TritonServer
from scripts.synthetic.checkpoint import make_checkpoint
from tests.e2e.codec import ONLY_CODEC
from tests.e2e.serving import copy_repository, serve

pytestmark = pytest.mark.long

typer = pytest.importorskip("typer")


@pytest.fixture(scope="module")
def server(tiny_code2wav: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    folder = tmp_path_factory.mktemp("mixed_calls")
    repository = copy_repository(folder / "model_repository", fakes=False)
    for file in (tiny_code2wav / "code2wav" / "1").iterdir():
        (repository / "code2wav" / "1" / file.name).write_bytes(file.read_bytes())
    with serve(repository, folder, {}, ONLY_CODEC) as server:
        yield server


def call(server: TritonServer, checkpoint: Path) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(main)
    options = ["--url", f"localhost:{server.ports.grpc}", "--calls", "150", "--callers", "3"]
    result = CliRunner().invoke(app, ["--checkpoint", str(checkpoint), *options])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.output


def test_right_codec_has_no_wrong_responses(server: TritonServer, tiny_checkpoint: Path) -> None:
    code, output = call(server, tiny_checkpoint)
    assert (code, "'calls': 150" in output, "'errors': 0" in output, "'wrong': 0" in output) == (0, True, True, True), (
        output
    )


def test_codec_of_another_checkpoint_has_only_wrong_responses(server: TritonServer, tmp_path: Path) -> None:
    code, output = call(server, make_checkpoint(tmp_path / "other", "tiny", "custom_voice", seed=1))
    assert (code, "'errors': 0" in output, "'wrong': 150" in output) == (1, True, True), output
