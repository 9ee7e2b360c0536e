"""Two servers with one database of voices: what one registers or deletes, the other speaks or refuses."""

import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from qwen3_tts_client.errors import SpeechError
from tests.conftest import CheckpointOf
from tests.e2e.serving import Caller, eventually, repository_with
from tests.e2e.test_voices import CLONE, IN_CONTEXT, assert_same, greedy, serving
from tests.postgres import PostgresServer

pytestmark = pytest.mark.long

PASSWORD = "only-the-database-knows"
UNKNOWN = "no voice is registered under this name"
AWAY = "UNAVAILABLE: voices_dsn: the database of the voices does not answer: try again later"


@pytest.fixture(scope="module")
def repository(tiny_base_models: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return repository_with(tiny_base_models, tmp_path_factory.mktemp("shared_voices"))


@pytest.fixture(scope="module")
def callers(
    repository: Path, checkpoint_of: CheckpointOf, postgres: PostgresServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[Caller]]:
    dsn = f"{postgres.create_database()} password={PASSWORD}"
    folders = [tmp_path_factory.mktemp("server") for _ in range(2)]
    with ExitStack() as stack:
        servers = [
            stack.enter_context(serving(repository, checkpoint_of("base"), folder, voices_dsn=dsn))
            for folder in folders
        ]
        yield [stack.enter_context(Caller(server)) for server in servers]
    for folder in folders:
        assert PASSWORD not in (folder / "server.log").read_text()
        assert not (folder / "store").exists(), "the folder is not used"


def error_of(caller: Caller, voice: str) -> str:
    return caller.speak(**greedy(voice=voice)).error or ""


def test_a_voice_of_one_server_is_spoken_by_both_until_the_other_deletes_it(callers: list[Caller]) -> None:
    here, there = callers
    here.operate("register_voice", "anna", **IN_CONTEXT)
    spoken = here.speak(**greedy(voice="anna")).samples
    assert_same(there.speak(**greedy(voice="anna")).samples, spoken)
    assert [voice["name"] for voice in there.operate("list_voices")] == ["anna"]
    with pytest.raises(SpeechError, match="voice: 'anna': already registered"):
        there.operate("register_voice", "anna", **IN_CONTEXT)
    there.operate("delete_voice", "anna")
    # A look-up that takes more than 0.25 s, on a busy machine, is answered from what was known.
    eventually(lambda: UNKNOWN in error_of(here, "anna"))
    assert here.operate("list_voices") == []


def test_a_name_registered_again_elsewhere_is_the_new_voice(callers: list[Caller]) -> None:
    here, there = callers
    here.operate("register_voice", "anna", **IN_CONTEXT)
    before = here.speak(**greedy(voice="anna")).samples
    there.operate("delete_voice", "anna")
    other = {"ref_audio": CLONE["ref_audio"][:40_000], "ref_sample_rate": 24000, "x_vector_only": True}
    there.operate("register_voice", "anna", **other)
    new = there.speak(**greedy(voice="anna")).samples

    def is_new() -> bool:
        samples = here.speak(**greedy(voice="anna")).samples
        return len(samples) == len(new) and abs(samples.astype(int) - new).max() <= 4

    assert len(before) != len(new) or abs(before.astype(int) - new).max() > 4
    eventually(is_new)
    here.operate("delete_voice", "anna")


def test_known_voices_outlast_the_database_and_new_ones_wait_for_it(
    callers: list[Caller], postgres: PostgresServer
) -> None:
    here, there = callers
    here.operate("register_voice", "bert", **IN_CONTEXT)
    spoken = here.speak(**greedy(voice="bert")).samples
    postgres.stop()
    try:
        assert_same(here.speak(**greedy(voice="bert")).samples, spoken)
        assert AWAY in error_of(there, "bert"), "it has never spoken this voice"
        assert there.speak(**greedy(**IN_CONTEXT)).error is None
        for operation, fields in (("list_voices", {}), ("register_voice", IN_CONTEXT), ("delete_voice", {})):
            with pytest.raises(SpeechError, match=AWAY):
                here.operate(operation, "bert", **fields)
    finally:
        postgres.start()
    eventually(lambda: error_of(there, "bert") == "")
    eventually(lambda: AWAY not in error_of(here, "nobody"))
    here.operate("delete_voice", "bert")
    eventually(lambda: UNKNOWN in error_of(there, "bert"))


def test_the_connection_string_is_shown_to_no_caller(callers: list[Caller]) -> None:
    ports = callers[0].server.ports
    for address in (f"{ports.http}/v2/models/qwen3_tts/config", f"{ports.metrics}/metrics"):
        with urllib.request.urlopen(f"http://localhost:{address}") as page:
            assert PASSWORD not in page.read().decode()


@pytest.mark.parametrize(
    ("version", "message"),
    [(None, "No such file or directory: start the database"), (7, "has version 7, this server needs 1: run the")],
)
def test_a_server_does_not_start_without_a_usable_database(
    repository: Path,
    checkpoint_of: CheckpointOf,
    postgres: PostgresServer,
    tmp_path: Path,
    version: int | None,
    message: str,
) -> None:
    dsn = f"host={tmp_path} password={PASSWORD}"
    if version:
        dsn = postgres.create_database()
        tables = f"CREATE TABLE qwen3_tts.schema_version AS SELECT {version} AS version"
        postgres.execute(f"CREATE SCHEMA qwen3_tts; {tables}", dsn)
    with (
        pytest.raises(Exception, match="ended with exit code"),
        serving(repository, checkpoint_of("base"), tmp_path, voices_dsn=dsn),
    ):
        pass
    log = (tmp_path / "server.log").read_text()
    assert any("voices_dsn: " in line and message in line for line in log.splitlines())
    assert PASSWORD not in log
