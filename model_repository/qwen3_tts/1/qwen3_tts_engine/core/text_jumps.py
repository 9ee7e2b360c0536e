"""Jumps of speech in its text, as they show in a position that only moves on (docs/word-times.md)."""

from collections import deque

# Three frames of the demo voice move on by 5 tokens at most; where it leaves out 6 tokens, by 7 or more.
AHEAD_TOKENS, AHEAD_FRAMES = 6, 3
# While speech is elsewhere in the text, no attention is near the position. A jump is counted once it is there again, so
# that heads that do not follow the text count nothing.
LOST_FRAMES, LOST, FOUND = 4, 0.2, 0.6


class TextJumps:
    """`ahead` counts where speech left tokens out, `back` where it left the position and came back to it."""

    def __init__(self) -> None:
        self.ahead = self.back = 0
        self._tokens: deque[int] = deque(maxlen=AHEAD_FRAMES + 1)
        # Since the attention was last at the position.
        self._lost_frames, self._is_ahead = 0, False

    def begin_part(self) -> None:
        self._tokens.clear()
        self._lost_frames, self._is_ahead = 0, False

    def observe(self, token: int, confidence: float | None) -> None:
        """A frame of the part, with its position and the confidence in it; None where nothing was observed."""
        if confidence is None:
            return
        self._tokens.append(token)
        self._is_ahead |= token - self._tokens[0] >= AHEAD_TOKENS
        self._lost_frames += confidence < LOST
        if confidence < FOUND:
            return
        if self._is_ahead:
            self.ahead += 1
            self._tokens.clear()
        elif self._lost_frames >= LOST_FRAMES:
            self.back += 1
        self._lost_frames, self._is_ahead = 0, False
