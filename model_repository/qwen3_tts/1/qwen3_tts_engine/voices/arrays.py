"""The arrays of a registered voice as one npz file."""

import io
import zipfile

import numpy as np

from qwen3_tts_engine.request import RequestError
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices.record import VoiceRecord


def pack(voice: Voice) -> bytes:
    """The x-vector and, for a voice in context, codes; its text is in the record."""
    arrays = {"x_vector": voice.x_vector}
    if voice.codes is not None:
        arrays["codes"] = voice.codes
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def unpack(content: bytes, record: VoiceRecord) -> Voice:
    """The voice of a record. Raises RequestError for a damaged file."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if record.ref_text is None:
                return Voice(arrays["x_vector"])
            return Voice(arrays["x_vector"], arrays["codes"], record.ref_text)
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise unreadable(record, error) from error


def unreadable(record: VoiceRecord, error: Exception, kind: type[RequestError] = RequestError) -> RequestError:
    return kind(f"voice: {record.name!r}: its file cannot be read: {error}")
