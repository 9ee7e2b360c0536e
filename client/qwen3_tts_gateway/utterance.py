"""Speaks a text as it arrives: from the options of a request to encoded audio and words."""

from typing import Protocol

from qwen3_tts_client.pieces import TextFeed
from qwen3_tts_gateway.audio.pipeline import Pipeline
from qwen3_tts_gateway.backend import Speech
from qwen3_tts_gateway.body import audio_seconds, encoded_parts
from qwen3_tts_gateway.log import Exchange
from qwen3_tts_gateway.parts import PartedSpeaker
from qwen3_tts_gateway.schema import SpeechOptions
from qwen3_tts_gateway.services import Services
from qwen3_tts_gateway.words import Words, WordTimeline


class Output(Protocol):
    """Sends an utterance to the client; `rate` is that of the audio in Hz."""

    async def audio(self, encoded: bytes, rate: int) -> None: ...

    async def words(self, words: Words, rate: int) -> None: ...

    async def done(self, speech: Speech) -> None: ...


async def speak_pieces(
    services: Services,
    options: SpeechOptions,
    text: TextFeed,
    timeline: WordTimeline,
    exchange: Exchange,
    output: Output,
) -> None:
    """Raises SpeechError and APIError."""
    exchange.model = model = await services.models.resolve(options.model)
    request = await services.builder.build(options, "", model)
    pipeline = Pipeline(options.audio_format, options.sample_rate, options.speed, services.encoders)
    speaker = PartedSpeaker(services.backend, request, model, exchange.request_id, exchange.trace)
    speech = await speaker.speak_pieces(text)
    try:
        async for part in encoded_parts(speech, pipeline, timeline):
            if isinstance(part, bytes):
                await output.audio(part, pipeline.rate)
            else:
                await output.words(part, pipeline.rate)
        await output.done(speech)
    finally:
        await speech.close()
        exchange.audio_s, exchange.finish_reason = audio_seconds(speech), speech.end.finish_reason
        exchange.characters = text.characters
        if services.settings.log_text:
            exchange.text, exchange.voice = "".join(text.pieces), options.voice
        services.metrics.count_audio(options.audio_format, exchange.audio_s, pipeline.busy_s)
