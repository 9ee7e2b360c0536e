"""Language codes."""

from qwen3_tts_client.checkpoints import LANGUAGES
from qwen3_tts_engine.frontend.languages import NAMES


def test_client_and_server_know_the_same_codes() -> None:
    assert {code: name for name, code in LANGUAGES.items()} == NAMES
