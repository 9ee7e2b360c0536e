"""Figures of scripts.benchmarks.demo_voice."""

import json
from pathlib import Path

import numpy as np
import pytest

from scripts.benchmarks import demo_voice
from scripts.demo_voice.sizes import FRAME
from scripts.demo_voice.texts import held_texts


def tone(amplitude: float, frames: int) -> np.ndarray:
    """A sine of 600 Hz, int16 [frames * 1920]."""
    samples: np.ndarray = np.round(32768 * amplitude * np.sin(np.arange(frames * FRAME) * np.pi / 20))
    return samples.astype(np.int16)


def test_level_is_that_of_the_audible_frames() -> None:
    silence = np.zeros(7 * FRAME + 5, np.int16)
    assert demo_voice.level([tone(0.1, 3), silence]) == pytest.approx(-23.01, abs=0.01)


def test_requests_repeat_sentences_with_other_seeds() -> None:
    texts = len(held_texts())
    asked = demo_voice.requests(0, texts + 1)
    assert asked[0].text == asked[texts].text
    assert asked[0].seed != asked[texts].seed


def test_a_part_replaces_its_own_figures(tmp_path: Path) -> None:
    output = tmp_path / "record.json"
    demo_voice.write(output, "words", {"wer": 0.5, "audible_ttfa_ms": {"c=1": 90.0}})
    demo_voice.write(output, "ends", {"never_ending": 1, "finish_reasons": {"length": 1}})
    demo_voice.write(output, "ends", {"never_ending": 0, "finish_reasons": {"stop": 1}})
    found = json.loads(output.read_text())
    assert (found["wer"], found["never_ending"]) == (0.5, 0)
    assert "finish_reasons" not in found
    assert found["parts"]["ends"]["finish_reasons"] == {"stop": 1}
    assert found["parts"]["words"]["audible_ttfa_ms"] == {"c=1": 90.0}
