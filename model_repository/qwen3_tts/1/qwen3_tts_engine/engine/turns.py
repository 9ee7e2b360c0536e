"""Who makes the codec's next call, for which chunks, and when."""

import threading
import time

from qwen3_tts_engine.core.batches import Chunks
from qwen3_tts_engine.engine.state import State
from qwen3_tts_engine.scheduling.chunker import Need


class Turns:
    """A codec loop makes it while the talker works; the talker's thread makes it between two ticks, where both never
    overlap (`in_turn`) or where a first audio is awaited."""

    def __init__(self, state: State, *, in_turn: bool, has_lookahead: bool, max_calls: int) -> None:
        """`has_lookahead`: the talker launches a tick before it has read the last one."""
        self._state, self.in_turn, self._has_lookahead = state, in_turn, has_lookahead
        self.codec = threading.BoundedSemaphore(max_calls)
        """Held by a codec loop from the selection of chunks to the end of their call."""

    def for_codec(self) -> Chunks | None:
        """A codec loop's next chunks, when there are some that are worth a call; None once the engine is closed."""
        state = self._state
        with state.lock:
            while not state.closed:
                # On a CPU a call takes longer than a tick, and an urgent one would come late behind a tick and a call.
                need = Need.ANY if state.talker_is_idle or not self._has_lookahead else Need.WORTHWHILE
                if chunks := state.chunker.next_chunks(time.perf_counter(), need):
                    return chunks
                state.codec_work.wait()
            return None

    # The methods below run under the lock, on the talker's thread.

    def before_tick(self, now: float, *, talker_has_work: bool, last_was_call: bool) -> Chunks | None:
        """Chunks to decode before the next tick, with no tick in flight."""
        need = Need.between_ticks(talker_has_work, last_was_call)
        return self._state.chunker.next_chunks(now, need) if self.in_turn else None

    def after_tick(self, now: float) -> Chunks | None:
        """Chunks to decode at once, of a tick that was read now."""
        awaited = self._state.scheduler.admission.awaits_first_audio
        return self._state.chunker.next_chunks(now) if awaited else None

    def is_due(self, now: float) -> bool:
        """Whether a call follows the ticks in flight, so that no further one should be launched."""
        between_ticks = self.in_turn or self._state.scheduler.admission.awaits_first_audio
        return between_ticks and self._state.chunker.will_be_due(now)
