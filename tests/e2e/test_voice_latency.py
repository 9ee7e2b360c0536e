"""Time to first audio of cloned voices, relative to CustomVoice on the same machine."""

import statistics
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.progress import Progress
from tritonclient.grpc import service_pb2

from export.encoders import CODEC_ENCODER, SPEAKER_ENCODER, export_encoder
from export.forms.onnx_form import ONNX
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from scripts.benchmarks import references
from scripts.synthetic import configs as synthetic_configs
from scripts.synthetic.checkpoint import make_checkpoint
from tests.e2e.serving import Caller, repository_with, serve
from tests.oracle.test_encoders import recording

pytestmark = pytest.mark.long

TEXT = "Hello there, this is a sentence of about thirty tokens, as people say them every day."
SECONDS = 3
REQUESTS, ROUNDS = 12, 3
# Largest allowed ratio of the time to first audio to that of CustomVoice.
LIMIT = 1.2


@pytest.fixture(scope="module")
def wide_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Base checkpoint with the talker width of the tiny CustomVoice one, twice the usual width."""
    original = synthetic_configs._talker

    def talker(size: Any, model_type: Any) -> Any:
        return original(size, "custom_voice") | {"spk_id": {}, "spk_is_dialect": {}}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(synthetic_configs, "_talker", talker)
        return make_checkpoint(tmp_path_factory.mktemp("wide") / "base", "tiny", "base")


@pytest.fixture(scope="module")
def callers(
    wide_base: Path, tiny_checkpoint: Path, tiny_code2wav: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Caller, Caller]]:
    """Callers of a CustomVoice server and of a Base server, which run at the same time."""
    folder = tmp_path_factory.mktemp("latency")
    with ExitStack() as stack:
        opened = []
        for name, checkpoint in (("custom", tiny_checkpoint), ("base", wide_base)):
            repository = repository_with(tiny_code2wav, folder / name)
            if name == "base":
                export_encoders(checkpoint, repository)
            environment = {
                "QWEN3_TTS_CHECKPOINT": str(checkpoint),
                "QWEN3_TTS_VOICES_FOLDER": str(folder / "voices"),
            }
            server = stack.enter_context(serve(repository, folder / name / "server", environment))
            opened.append(stack.enter_context(Caller(server)))
        yield opened[0], opened[1]


def export_encoders(folder: Path, repository: Path) -> None:
    checkpoint = Checkpoint.open(str(folder))
    with Progress(disable=True) as progress:
        for encoder in (SPEAKER_ENCODER, CODEC_ENCODER):
            export_encoder(encoder, checkpoint, repository / encoder.name, ONNX.encoders, progress)


def reference(seed: int) -> dict[str, Any]:
    audio = recording(24000, SECONDS * 24000) + np.random.default_rng(seed).normal(0, 0.01, SECONDS * 24000)
    return {"ref_audio": audio.astype(np.float32), "ref_sample_rate": 24000, "ref_text": "What the reference says."}


def ttfa_ms(caller: Caller, **fields: Any) -> float:
    received = caller.speak(TEXT, **({"speaker": None} | fields), seed=3, max_frames=4)
    assert received.error is None
    return (received.arrivals[0] - received.sent) / 1e6


def test_benchmark_of_references(callers: tuple[Caller, Caller]) -> None:
    _, base = callers

    def encoded() -> int:
        request = service_pb2.ModelStatisticsRequest(name=SPEAKER_ENCODER.name)
        return int(base.stub.ModelStatistics(request).model_stats[0].execution_count)

    before = encoded()
    rows = references.measure(base.stub, 2, 1.0)
    assert [(row["reference"], row["requests"]) for row in rows] == [
        (f"{met}, {kind}", 2) for kind in ("in context", "x-vector") for met in ("new", "again")
    ]
    assert all(0 < row["p50_ms"] <= row["p95_ms"] for row in rows)
    # Two and a warm-up, of both kinds; none for a reference that was met.
    assert encoded() == before + 2 * (2 + references.WARM_UP)


@pytest.mark.timing
def test_cached_voices_reach_first_audio_within_the_limit(callers: tuple[Caller, Caller]) -> None:
    custom, base = callers
    base.operate("register_voice", "anna", **reference(0))
    inline = reference(1)
    measures = {
        "CustomVoice": lambda index: ttfa_ms(custom, speaker="ryan"),
        "registered": lambda index: ttfa_ms(base, voice="anna"),
        "reference again": lambda index: ttfa_ms(base, **inline),
        "new reference": lambda index: ttfa_ms(base, **reference(100 + index)),
    }
    for measure in measures.values():
        for index in range(3):
            measure(-1 - index)
    rounds = []
    for round_number in range(ROUNDS):
        # Interleaved, so that other load on the machine affects all of them equally.
        indices = range(round_number * REQUESTS, (round_number + 1) * REQUESTS)
        times = [[measure(index) for measure in measures.values()] for index in indices]
        rounds.append(dict(zip(measures, map(statistics.median, zip(*times, strict=True)), strict=True)))
    for medians in rounds:
        print({name: round(milliseconds, 1) for name, milliseconds in medians.items()})
    for name in ("registered", "reference again"):
        assert statistics.median(medians[name] / medians["CustomVoice"] for medians in rounds) <= LIMIT
    assert all(medians["new reference"] > medians["reference again"] for medians in rounds), (
        "encoding a new reference takes time"
    )
