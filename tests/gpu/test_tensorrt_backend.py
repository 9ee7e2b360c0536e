"""The codec's plan in Triton's own TensorRT backend (docs/code2wav.md), with concurrent callers."""

import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.progress import Progress
from tritonclient.utils import InferenceServerException

from export.code2wav import export
from export.forms.form import Form
from export.forms.tensorrt_form import tensorrt_form
from export.golden import make_golden
from export.modules.codec import CodecStep
from export.tensorrt.api import PLUGIN_LIBRARY
from export.tensorrt.process import TENSORRT_PYTHON, TensorRtSettings
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.codec.contract import MAX_BATCH, MAX_FRAMES, PCM, max_history
from scripts.benchmarks.mixed_calls import FRAMES, UTTERANCES, Caller, connect, run
from scripts.server.installation import LIBRARIES, ServerError, find_library
from scripts.synthetic.checkpoint import make_checkpoint, make_endless
from tests.e2e.codec import Codec, serve_codec
from tests.e2e.serving import compiled_backend, copy_repository
from tests.gpu.test_mps import MPS, SHARED, kill_beside_streams
from tests.gpu.test_serving import serving

LIBRARY, PYTHON = os.environ.get(PLUGIN_LIBRARY), os.environ.get(TENSORRT_PYTHON)
HERE = importlib.util.find_spec("tensorrt") is not None
pytestmark = [
    pytest.mark.skipif(not PYTHON and not HERE, reason="no TensorRT"),
    pytest.mark.skipif(not LIBRARY, reason=f"{PLUGIN_LIBRARY} names no library"),
]

CALLERS, CALLS = 4, 4000


@pytest.fixture(scope="module")
def backend() -> Path:
    folder = compiled_backend("tensorrt")
    try:
        for name in LIBRARIES["tensorrt"]:
            find_library(name)
    except ServerError as error:
        pytest.skip(str(error))
    return folder


@pytest.fixture(scope="module")
def form(tmp_path_factory: pytest.TempPathFactory) -> Form:
    cache = tmp_path_factory.mktemp("timings")
    return tensorrt_form(TensorRtSettings(Path(PYTHON or sys.executable), 0, cache, Path(LIBRARY or "")))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """The small released size, since the tiny codec has no kernels; its utterances never end by themselves."""
    folder = tmp_path_factory.mktemp("checkpoint")
    with Progress(disable=True) as progress:
        make_checkpoint(folder, "0.6b", "custom_voice", progress=progress)
    make_endless(folder)
    return Checkpoint.open(str(folder))


@pytest.fixture(scope="module")
def plans(checkpoint: Checkpoint, form: Form, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A repository with the plan."""
    repository = copy_repository(tmp_path_factory.mktemp("plans") / "model_repository", fakes=False)
    with Progress(disable=True) as progress:
        export(checkpoint, repository, form, progress)
    return repository


@pytest.fixture(scope="module")
def codec(backend: Path, plans: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Codec]:
    with serve_codec(plans, tmp_path_factory.mktemp("server"), [backend]) as codec:
        yield codec


def test_concurrent_calls_of_all_shapes_agree_with_pytorch(codec: Codec, checkpoint: Checkpoint, form: Form) -> None:
    step = CodecStep.from_checkpoint(checkpoint)
    golden = make_golden(step, "", form.limit.snr_db, UTTERANCES, FRAMES)
    callers = [Caller(connect(codec.url), golden, max_history(step.config), seed) for seed in range(CALLERS)]
    outcome = run(callers, CALLS)
    assert (outcome.errors, outcome.wrong) == ([], [])


def test_malformed_call_fails_and_the_next_one_succeeds(codec: Codec) -> None:
    expected = codec.call(codec.request())
    for request in (
        codec.request(1, 3),
        codec.request(1, MAX_FRAMES),
        codec.request(MAX_BATCH + 1, 1),
        codec.request(places=np.zeros((1, 5), np.int32)),
        codec.request(places=np.zeros((1, 4), np.float32)),
    ):
        with pytest.raises(InferenceServerException):
            codec.call(request)
        np.testing.assert_array_equal(codec.call(codec.request())[PCM], expected[PCM])


@pytest.mark.skipif(not MPS, reason="no MPS")
def test_talker_and_plan_share_the_gpu_and_end_together(
    backend: Path, plans: Path, checkpoint: Checkpoint, tmp_path: Path
) -> None:
    with serving(plans, tmp_path, checkpoint.folder, "tensorrt", [backend]) as caller:
        assert caller.speak(max_frames=4).error is None
        assert SHARED in (tmp_path / "server.log").read_text()
        kill_beside_streams(caller, "qwen3_tts")
