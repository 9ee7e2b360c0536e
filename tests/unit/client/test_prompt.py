import json
from collections import Counter
from pathlib import Path

import pytest

from qwen3_tts_client.bench.prompt import DEFAULT_FILE, read_prompts
from qwen3_tts_client.errors import ClientError, ExitCode


def test_default_prompts_are_twenty_texts_in_each_of_ten_languages() -> None:
    prompts = read_prompts(DEFAULT_FILE)
    languages = Counter(prompt.fields["language"] for prompt in prompts)
    assert len(languages) == 10
    assert set(languages.values()) == {20}
    assert len({prompt.id for prompt in prompts}) == 200
    assert len({prompt.fields["text"] for prompt in prompts}) == 200
    english = [len(p.fields["text"].split()) for p in prompts if p.fields["language"] == "english"]
    assert min(english) <= 2
    assert 50 <= max(english) <= 60


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ('"text"', "expected a JSON object"),
        ('{"id": "a"}', 'field "text" is missing'),
        ('{"text": 3}', '"text" is 3'),
        ('{"text": "a", "tempo": 2}', 'unknown field "tempo"; choose from id, text, language'),
        ('{"text": "a", "max_frames": 9999999999}', "max_frames: 9999999999 does not fit INT32"),
        (r'{"text": "\ud800"}', "surrogates not allowed"),
        ('{"text": "a", "max_frames": "many"}', "\"max_frames\" is 'many'"),
    ],
)
def test_names_a_malformed_line(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps({"text": "fine"}) + "\n\n" + line + "\n")
    with pytest.raises(ClientError, match=r"prompts\.jsonl:3: ") as raised:
        read_prompts(file)
    assert message in str(raised.value)
    assert raised.value.code == ExitCode.USAGE


def test_null_is_a_field_that_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"text": "Hello.", "language": null, "max_frames": null}')
    [prompt] = read_prompts(file)
    assert prompt.fields == {"text": "Hello."}


@pytest.mark.parametrize("content", [b"", b"\n \n", b"\xff\xfe"])
def test_rejects_a_file_without_prompts(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(content)
    with pytest.raises(ClientError, match="prompt file"):
        read_prompts(file)
    with pytest.raises(ClientError, match="No such file"):
        read_prompts(tmp_path / "none")
