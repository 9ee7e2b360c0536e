"""Heads that follow the text are found without labels, and none where there are none."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

import export.__main__ as cli
from export.alignment import (
    MAIN_LANGUAGE,
    MAX_HEADS,
    SENTENCES,
    LayoutReport,
    Spoken,
    advance,
    choose,
    choose_heads,
    head_parts,
    mean_scores,
    report,
)
from export.reference_voice import reference_voice
from qwen3_tts_engine.checkpoint.alignment import LAYOUTS, Alignment, TextLayout, alignment_file
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from tests.conftest import CheckpointOf
from tests.unit.talker.demo_clone import base_checkpoint, clone

DEMO = Path(__file__).parents[3] / "scripts" / "demo_voice" / "tiny-speaking"
FRAMES, LAYERS, HEADS, TOKENS = 40, 3, 4, 12
CPU = torch.device("cpu")


def spoken(following: dict[tuple[int, int], float], seed: int = 0, frames: int = FRAMES) -> Spoken:
    """Heads that attend at random, but for `following`, which follow the text with that share of their attention."""
    random = np.random.default_rng(seed)
    attention = random.dirichlet(np.ones(TOKENS + 1), (frames, LAYERS, HEADS)).astype(np.float32)
    at = np.round(np.linspace(0, TOKENS, frames)).astype(int)
    for (layer, head), share in following.items():
        attention[:, layer, head] *= 1 - share
        attention[np.arange(frames), layer, head, at] += share
    return Spoken(attention, 0)


def test_heads_that_follow_the_text_are_chosen_the_best_first() -> None:
    utterances = [spoken({(1, 2): 0.95, (0, 3): 0.9, (2, 0): 0.3}, seed) for seed in range(5)]
    assert choose(mean_scores(utterances)) == [(1, 2), (0, 3)]


def test_at_most_six_heads_are_chosen() -> None:
    every = {(layer, head): 0.9 for layer in range(LAYERS) for head in range(HEADS)}
    assert len(choose(mean_scores([spoken(every, seed) for seed in range(3)]))) == MAX_HEADS


def test_no_head_is_chosen_where_none_follows_the_text() -> None:
    found = report("full", {"english": [spoken({}, seed) for seed in range(5)]})
    assert found.chosen is None
    assert found.best < 0.1
    assert str(found).startswith("full: no word times: no head follows the text (score 0.0")


@pytest.mark.parametrize("change", ["backwards", "fixed", "blurred", "half"])
def test_each_part_of_the_score_refuses_another_kind_of_head(change: str) -> None:
    right = spoken({(0, 0): 0.95})
    attention = right.attention.copy()
    match change:
        case "backwards":
            attention[:, 0, 0] = attention[::-1, 0, 0]
        case "fixed":
            attention[:, 0, 0] = attention[:1, 0, 0]
        case "blurred":
            attention[:, 0, 0] = 1 / (TOKENS + 1)
        case "half":
            attention[:, 0, 0] = attention[: FRAMES // 2, 0, 0].repeat(2, 0)
    score, changed = (float(mean_scores([one])[0, 0]) for one in (right, Spoken(attention, 0)))
    assert score > 0.6
    assert changed < 0.6 * score


def test_only_frames_that_see_the_whole_text_count() -> None:
    whole = spoken({(0, 0): 0.95})
    attention = whole.attention.copy()
    attention[:10] = spoken({}, seed=7).attention[:10]
    late = Spoken(attention, 10)
    assert mean_scores([late])[0, 0] == pytest.approx(mean_scores([whole])[0, 0], abs=0.1)
    assert not mean_scores([Spoken(attention, FRAMES - 7)]).any(), "too few frames"
    assert np.isfinite(head_parts(Spoken(attention, FRAMES - 8))).all()


def test_the_rate_is_that_of_the_sentences() -> None:
    moves = advance([spoken({}, frames=FRAMES), spoken({}, frames=2 * FRAMES)])
    assert sum(moves) == pytest.approx(1, abs=1e-3)
    mean = sum(step * share for step, share in enumerate(moves))
    assert mean == pytest.approx(TOKENS / FRAMES * 0.75, rel=1e-2)


def test_scores_are_by_language() -> None:
    found = report("full", {"english": [spoken({(1, 1): 0.9})], "german": [spoken({}, seed=3)]})
    assert found.chosen is not None
    assert found.chosen.heads == [(1, 1)]
    assert found.chosen.scores["english"] > 0.5 > 0.1 > found.chosen.scores["german"]
    assert str(found).startswith("full: L1H1; scores: english 0.")


@pytest.fixture(scope="module")
def demo() -> tuple[Alignment, dict[str, str]]:
    alignment, reports = choose_heads(Checkpoint.open(str(DEMO)), CPU)
    return alignment, {each.layout: str(each) for each in reports}


def test_heads_of_the_demo_voice(demo: tuple[Alignment, dict[str, str]]) -> None:
    """Those that forced alignment of 40 other sentences found to give the best times."""
    alignment, reports = demo
    heads = {layout: set(found.heads) for layout, found in alignment.layouts.items()}
    assert heads == {"full": {(2, 0), (2, 1), (2, 3), (3, 1)}, "streaming": {(2, 0), (2, 1), (2, 3)}}
    for layout in LAYOUTS:
        scores = alignment.layouts[layout].scores
        assert len(scores) == 10
        assert scores["english"] > 0.6 > 0.3 > max(scores["russian"], scores["japanese"])
        assert reports[layout].startswith(f"{layout}: L2H")


def test_a_base_checkpoint_with_the_same_talker_has_the_same_heads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the context of a reference, and by an x-vector alone."""
    monkeypatch.setattr("export.alignment.SENTENCES", {MAIN_LANGUAGE: SENTENCES[MAIN_LANGUAGE]})
    checkpoint, voice = base_checkpoint(tmp_path), clone()
    for cloned in (voice, voice.alone()):
        alignment, _ = choose_heads(checkpoint, CPU, cloned)
        for layout in LAYOUTS:
            found = alignment.layouts[layout]
            assert {(2, 0), (2, 1), (2, 3)} <= set(found.heads) <= {(2, 0), (2, 1), (2, 3), (3, 1)}
            assert found.scores["english"] > 0.6


def test_the_reference_is_encoded_in_context(checkpoint_of: CheckpointOf) -> None:
    checkpoint = Checkpoint.open(str(checkpoint_of("base")))
    voice = reference_voice(checkpoint)
    assert voice.x_vector.shape == (checkpoint.config.talker_config.hidden_size,)
    assert voice.codes is not None
    assert voice.codes.shape == (44, 16)
    assert voice.codes.std(axis=0).all()
    assert voice.text is not None
    assert 15 * 3.52 < len(voice.text) < 20 * 3.52, "characters, at 15 to 20 a second"


def test_an_alignment_is_that_of_its_checkpoint(
    demo: tuple[Alignment, dict[str, str]], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    alignment, other = demo[0], Checkpoint.open(str(tiny_checkpoint))
    assert Alignment.read(tmp_path, other) is None
    alignment.write(tmp_path)
    assert Alignment.read(tmp_path, Checkpoint.open(str(DEMO))) == alignment
    assert Alignment.read(tmp_path, other) is None
    (other_heads := alignment.model_copy(update={"talker_digest": other.talker_digest})).write(tmp_path)
    assert Alignment.read(tmp_path, other) == other_heads
    assert Alignment.read(tmp_path, Checkpoint.open(str(DEMO))) == alignment
    alignment_file(tmp_path, other.talker_digest).write_text("{}")
    with pytest.raises(CheckpointError, match=r"alignment-.*\.json.*run `python -m export` again"):
        Alignment.read(tmp_path, other)


@dataclass(frozen=True)
class Found:
    alignment: Alignment
    reports: list[LayoutReport]
    spoken: dict[str, list[Spoken]]
    """By layout."""


@pytest.fixture(scope="module")
def random_weights(tiny_checkpoint: Path) -> Found:
    found: dict[str, list[Spoken]] = {}

    def keep(layout: TextLayout, spoken: Mapping[str, Sequence[Spoken]]) -> LayoutReport:
        found[layout] = [one for utterances in spoken.values() for one in utterances]
        return report(layout, spoken)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("export.alignment.report", keep)
        return Found(*choose_heads(Checkpoint.open(str(tiny_checkpoint)), CPU), found)


def test_random_weights_have_no_word_times(random_weights: Found) -> None:
    assert random_weights.alignment.layouts == {}
    assert all("no word times" in str(each) for each in random_weights.reports)


def test_attention_is_to_the_text_that_a_frame_sees(random_weights: Found) -> None:
    found = random_weights.spoken
    for one in found["full"]:
        assert one.first_whole == 0
        np.testing.assert_allclose(one.attention.sum(-1), 1, atol=1e-5)
    for one in found["streaming"]:
        # A token before the first frame, then one after each.
        seen = (one.attention > 0).any((1, 2)).sum(-1)
        np.testing.assert_array_equal(seen, np.minimum(1 + np.arange(len(seen)), one.num_tokens + 1))
        assert one.first_whole == one.num_tokens


def test_the_exporter_says_what_it_chose_and_keeps_it(
    tiny_checkpoint: Path,
    random_weights: Found,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checkpoint = Checkpoint.open(str(tiny_checkpoint))
    monkeypatch.setattr(cli, "choose_heads", lambda *_: (random_weights.alignment, random_weights.reports))
    for force, words in ((False, "no word times"), (False, "up to date"), (True, "no word times")):
        cli._choose_heads(checkpoint, tmp_path / "qwen3_tts", force)
        assert words in capsys.readouterr().out
