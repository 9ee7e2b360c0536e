"""The last steps of startup, which require a running server: prove the codec, warm up, open the gate."""

import logging
import threading
import time
from collections.abc import Callable

from qwen3_tts_engine.codec.client import Code2Wav
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MODEL_NAME
from qwen3_tts_engine.codec.golden import Golden
from qwen3_tts_engine.codec.proof import CodecProof, CodecProofError
from qwen3_tts_engine.config import EngineConfig
from qwen3_tts_engine.engine.engine import Engine
from qwen3_tts_engine.interfaces import CodecClient
from qwen3_tts_engine.lifecycle.gate import Gate
from qwen3_tts_engine.lifecycle.warm_up import MakeStream, speak
from qwen3_tts_engine.request import RequestError, ServerStarting, Unavailable

log = logging.getLogger(__name__)

# The Python backend creates the executor of a model's calls only after `initialize` returns: an earlier call crashes
# Triton (python_be.cc, LaunchStubProcess), and the model gets no signal when it is safe.
LAUNCH_SECONDS = 1.0
POLL_SECONDS = 0.1
CLOSE_SECONDS = 10.0


class Opening:
    """Starts the engine once the codec is proven; a failed proof ends the engine, which then refuses all requests."""

    def __init__(
        self, engine: Engine, gate: Gate, config: EngineConfig, on_thread_start: Callable[[], None] = lambda: None
    ) -> None:
        self._engine, self._gate, self._config = engine, gate, config
        self._on_thread_start = on_thread_start
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, codec: Code2Wav, golden: Golden | None, warm_up: MakeStream | None) -> None:
        """Start on a thread, once code2wav is ready, its rows are claimed, and it matches its golden cases, if any.

        Must be the last statement of `initialize`: the first codec call follows LAUNCH_SECONDS later.
        """

        def run() -> None:
            self._on_thread_start()
            self._pause(LAUNCH_SECONDS)
            self._claim_rows(codec)
            if golden:
                self._prove(codec, golden)
            self._engine.start()
            if golden:
                speak(self._engine, warm_up, self._config)

        self._thread = threading.Thread(target=self._run, args=(run,), name="opening", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        if self._thread and self._thread is not threading.current_thread():
            self._thread.join(CLOSE_SECONDS)

    def _claim_rows(self, codec: Code2Wav) -> None:
        """Block until code2wav has given this talker its rows.

        Raises CodecProofError when Triton has started and code2wav is still unavailable after codec_wait_seconds.
        """
        since: float | None = None
        while (error := _unavailable(codec)) is not None:
            now = time.monotonic()
            since = None if isinstance(error, ServerStarting) else since or now
            if since and now - since > self._config.codec_wait_seconds:
                raise CodecProofError(
                    f"{MODEL_NAME} is unavailable after {self._config.codec_wait_seconds:g} s (codec_wait_seconds): "
                    f"load it before this model, or check the log for why its load failed: {error}"
                )
            self._pause(POLL_SECONDS)

    def _pause(self, seconds: float) -> None:
        if self._closed.wait(seconds):
            raise Unavailable("the server is shutting down")

    def _prove(self, codec: CodecClient, golden: Golden) -> None:
        config = self._config
        proof = CodecProof(codec, golden)
        lengths = [frames for frames in CHUNK_FRAMES if frames <= config.max_chunk_frames]
        proof.run(lengths, config.max_streams, config.codec_proof_seconds, self._closed)

    def _run(self, run: Callable[[], None]) -> None:
        try:
            run()
        except Exception as error:
            if not self._closed.is_set():
                log.error("no request is served: %s", error, exc_info=not isinstance(error, RequestError))
                self._engine.die(error)
        finally:
            self._gate.open()


def _unavailable(codec: Code2Wav) -> Unavailable | None:
    """The error of a codec that cannot be called. Raises RequestError for a claim that is refused."""
    try:
        codec.claim()
    except Unavailable as error:
        return error
    except RequestError:
        raise
    except Exception as error:
        # For instance Triton's refusal of calls before `initialize` has returned.
        return Unavailable(str(error))
    return None
