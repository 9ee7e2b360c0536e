"""Feeds the text of prompts to a runner in pieces, as the scheduler does."""

import numpy as np

from qwen3_tts_engine.core.batches import Newcomer, TextFeed
from qwen3_tts_engine.talker.runner import TalkerRunner


def speak_whole(runner: TalkerRunner, newcomers: list[Newcomer], frames: int) -> np.ndarray:
    """Codes [frames, rows, codebooks] of prompts with their whole text."""
    for newcomer in newcomers:
        assert runner.prefill([newcomer]) == []
    slots = np.array([newcomer.slot for newcomer in newcomers])
    return np.stack([runner.collect(runner.launch(slots)).codes.copy() for _ in range(frames)])


def speak_in_pieces(runner: TalkerRunner, newcomers: list[Newcomer], frames: int, *, late: bool) -> np.ndarray:
    """The same codes, with one id fed to each row before each frame or, with `late`, after its frame."""
    texts = []
    for newcomer in newcomers:
        prompt = newcomer.stream.prompt
        texts.append(list(prompt.trailing))
        prompt.trailing.clear()
        prompt.is_open = True
        assert runner.prefill([newcomer]) == []
    slots = np.array([newcomer.slot for newcomer in newcomers])
    made = []
    for frame in range(frames):
        if late:
            made.append(runner.collect(runner.launch(slots)).codes.copy())
        feeds = [
            TextFeed(int(slot), frame, [text[frame]], is_open=frame + 1 < len(text), late=late, num_spoken=frame + 1)
            for slot, text in zip(slots, texts, strict=True)
            if frame < len(text)
        ]
        if feeds:
            runner.feed(feeds)
        if not late:
            made.append(runner.collect(runner.launch(slots)).codes.copy())
    return np.stack(made)
