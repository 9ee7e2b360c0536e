"""Audio sinks of `say`: a file, standard output, or the sound device."""

import contextlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from qwen3_tts_client.errors import STANDARD_OUTPUT, ClientError, ExitCode, reported
from qwen3_tts_client.wav import WavWriter

# Players of raw 16-bit mono PCM from standard input.
_PLAYERS = {
    "aplay": ("-q", "-t", "raw", "-f", "S16_LE", "-c", "1", "-r", "{rate}"),
    "paplay": ("--raw", "--format=s16le", "--channels=1", "--rate={rate}"),
}


# Names of formats that `say` does not write; other suffixes are part of a name.
_OTHER_FORMATS = (".aac", ".aiff", ".caf", ".flac", ".m4a", ".mp3", ".mp4", ".ogg", ".opus", ".pcm", ".raw", ".webm")


class Sink(Protocol):
    def write(self, pcm: NDArray[np.int16]) -> None: ...

    def close(self) -> None:
        """Returns once all audio is played or written."""


class FadingSink:
    """Fades the last 5 ms of an utterance that is cancelled, so that it does not end in a click."""

    def __init__(self, sink: Sink, sample_rate: int) -> None:
        self._sink = sink
        self._fade = np.linspace(1, 0, sample_rate // 200, dtype=np.float32)
        self._held = np.empty(0, np.int16)

    def write(self, pcm: NDArray[np.int16]) -> None:
        """Passes on all but the last 5 ms."""
        samples = np.concatenate([self._held, pcm])
        kept = max(0, len(samples) - len(self._fade))
        self._held = samples[kept:]
        self._sink.write(samples[:kept])

    def finish(self) -> None:
        """The utterance is complete."""
        self._sink.write(self._held)
        self._held = self._held[:0]

    def close(self) -> None:
        try:
            if len(self._held):
                self._sink.write((self._held * self._fade[-len(self._held) :]).astype(np.int16))
        finally:
            self._sink.close()


def check_output(output: str) -> None:
    """Raises ClientError for an output that cannot be written, before anything is spoken."""
    path = Path(output)
    if path.suffix.lower() in _OTHER_FORMATS:
        remedy = f"name it {path.with_suffix('.wav')}, or pipe --output - (raw 16-bit PCM) into an encoder"
        raise ClientError(f"--output {output}: only WAV is written; {remedy}")
    if output == "-" and sys.stdout is None:
        raise ClientError("--output -: standard output is closed; give a file", ExitCode.OUTPUT)


def open_sink(output: str, play: bool, sample_rate: int) -> Sink:
    """`output` is a WAV path or "-" for raw PCM on standard output. Raises ClientError."""
    if play:
        return _open_player(sample_rate)
    if output == "-":
        return PipeSink(sys.stdout.buffer)
    return WavWriter(Path(output), sample_rate)


def _open_player(sample_rate: int) -> Sink:
    try:
        return SoundDevice(sample_rate)
    except (ImportError, OSError):  # the package or its PortAudio library is missing
        pass
    for name, arguments in _PLAYERS.items():
        if path := shutil.which(name):
            return PlayerProcess([path, *(argument.format(rate=sample_rate) for argument in arguments)])
    raise ClientError("--play: no sound device found; install aplay, paplay or the Python package sounddevice")


class PipeSink:
    def __init__(self, pipe: BinaryIO) -> None:
        self._pipe = pipe

    def write(self, pcm: NDArray[np.int16]) -> None:
        with reported(STANDARD_OUTPUT):
            self._pipe.write(pcm.astype("<i2").tobytes())
            self._pipe.flush()

    def close(self) -> None:
        pass


class PlayerProcess(PipeSink):
    def __init__(self, command: list[str]) -> None:
        self._name = Path(command[0]).name
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        super().__init__(cast(BinaryIO, self._process.stdin))

    def write(self, pcm: NDArray[np.int16]) -> None:
        try:
            super().write(pcm)
        except BrokenPipeError:
            raise ClientError(f"--play: {self._name} ended: its message is above", ExitCode.OUTPUT) from None

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._pipe.close()
        self._process.wait()


class SoundDevice:
    def __init__(self, sample_rate: int) -> None:
        import sounddevice  # optional; importing it opens the sound system

        try:
            self._stream: Any = sounddevice.RawOutputStream(sample_rate, channels=1, dtype="int16")
        except sounddevice.PortAudioError as error:
            raise ClientError(f"--play: {error}") from None
        self._stream.start()

    def write(self, pcm: NDArray[np.int16]) -> None:
        self._stream.write(pcm.tobytes())

    def close(self) -> None:
        self._stream.stop()
        self._stream.close()
