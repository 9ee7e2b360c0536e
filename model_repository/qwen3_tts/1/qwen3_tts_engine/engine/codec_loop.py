"""The codec loop: chunks become audio, which is sent."""

from qwen3_tts_engine.codec.sound import to_send, trailing_silence
from qwen3_tts_engine.core.batches import Audio, Chunks
from qwen3_tts_engine.engine.delivery import Delivery
from qwen3_tts_engine.engine.state import State
from qwen3_tts_engine.engine.turns import Turns
from qwen3_tts_engine.interfaces import CodecClient, Decoded, decode
from qwen3_tts_engine.metrics import Recorder
from qwen3_tts_engine.threads import Precedence


class CodecLoop:
    def __init__(
        self, state: State, turns: Turns, codec: CodecClient, delivery: Delivery, recorder: Recorder,
        precedence: Precedence,
    ) -> None:  # fmt: skip
        self._state, self._turns, self._codec = state, turns, codec
        self._delivery, self._recorder, self._precedence = delivery, recorder, precedence
        self._last_ended = 0.0

    def run(self) -> None:
        """Runs on threads of its own; one delivers what it decoded while others await their calls."""
        while True:
            with self._turns.codec:
                self._precedence.wait()
                if (chunks := self._turns.for_codec()) is None:
                    return
                decoded = decode(self._codec, chunks)
            self._precedence.wait()
            self._deliver(decoded)

    def between_ticks(self, chunks: Chunks) -> None:
        """Decodes and delivers `chunks` on the talker's thread."""
        with self._precedence.resting():
            self._deliver(decode(self._codec, chunks))

    def announce(self) -> None:
        """A call follows within milliseconds."""
        self._codec.announce()

    def _deliver(self, decoded: Decoded) -> None:
        """Send the audio of a codec call, then account for it. Until then its streams cannot end."""
        state, chunks, seconds = self._state, decoded.chunks, decoded.ended - decoded.called
        sent = to_send(chunks, decoded.pcm)
        self._delivery.put(decoded, sent)
        self._delivery.flush()
        self._recorder.add_codec_call(decoded.called - float(chunks.ready_at.min()), seconds, len(chunks))
        audio = Audio(sent, trailing_silence(chunks, decoded.pcm))
        with state.lock:
            # Leaves out the time in which the call before ran, too.
            begun, self._last_ended = max(decoded.called, self._last_ended), max(decoded.ended, self._last_ended)
            if begun < decoded.ended:
                state.scheduler.capacity.add_codec_call(chunks.codes[..., 0].size, decoded.ended - begun)
            drained = state.chunker.done(chunks, audio, decoded.ended)
            ended = state.scheduler.settle(drained) | state.scheduler.cut_silent(chunks)
            state.talker_work.notify()
        self._delivery.end(ended)
