"""`python -m export`: exported files, up-to-date checks and refusals."""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import typer
from onnx import numpy_helper
from rich.progress import Progress
from typer.testing import CliRunner

import export.__main__ as cli
from code2wav_step.onnx_runner import OnnxStepRunner
from export.agreement import Agreement, compare_step
from export.alignment import LayoutReport
from export.encoders import SPEAKER_ENCODER, export_encoder
from export.forms.graph import Runtime, TracedModule
from export.forms.onnx_form import ONNX
from export.forms.python_form import step_config
from export.model_folder import ExportError
from export.modules.codec import CodecStep
from export.reference import Reference
from qwen3_tts_engine.audio import SAMPLES_PER_FRAME
from qwen3_tts_engine.checkpoint.alignment import Alignment
from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import CheckpointError
from qwen3_tts_engine.checkpoint.manifest import CodecManifest, is_plan
from qwen3_tts_engine.codec.contract import CHUNK_FRAMES, MAX_FRAMES
from qwen3_tts_engine.codec.golden import GOLDEN, Golden
from qwen3_tts_engine.voices.encoders import read_encoder
from tests.conftest import CheckpointOf


def run(checkpoint: Path, repository: Path, *options: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(cli.main)
    arguments = ["--checkpoint", str(checkpoint), "--model-repository", str(repository), *options]
    result = CliRunner().invoke(app, arguments)
    return result.exit_code, result.output


@pytest.fixture(autouse=True)
def _no_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tiny checkpoints have none, which takes seconds to find out (test_alignment.py)."""

    def none(checkpoint: Checkpoint, *_: object) -> tuple[Alignment, list[LayoutReport]]:
        return Alignment(talker_digest=checkpoint.talker_digest, layouts={}), []

    monkeypatch.setattr(cli, "choose_heads", none)


@pytest.fixture
def version(tiny_code2wav: Path) -> Path:
    return tiny_code2wav / "code2wav" / "1"


def test_the_manifest_says_whether_code2wav_is_a_plan(version: Path, tmp_path: Path) -> None:
    assert not is_plan(version)
    assert not is_plan(tmp_path), "no manifest"
    CodecManifest.read(version).model_copy(update={"form": "tensorrt"}).write(tmp_path)
    assert is_plan(tmp_path)


def test_manifest_describes_the_exported_file(version: Path, tiny_checkpoint: Path) -> None:
    checkpoint, manifest = Checkpoint.open(str(tiny_checkpoint)), CodecManifest.read(version)
    assert (manifest.form, manifest.state_dtype, manifest.sample_rate) == ("onnx", "FP32", 24000)
    assert manifest.codec_digest == checkpoint.codec_digest
    assert manifest.state_size == CodecStep.from_checkpoint(checkpoint).state_size
    assert manifest.chunk_frames == [*CHUNK_FRAMES]
    assert sorted(path.name for path in version.iterdir()) == ["golden.safetensors", "model.json", "model.onnx"]


def test_graph_has_dynamic_rows_and_frames_and_the_checkpoints_state(version: Path, tiny_checkpoint: Path) -> None:
    size = CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint))).state_size
    session = onnxruntime.InferenceSession(version / ONNX.filename, providers=["CPUExecutionProvider"])
    sizes = {tensor.name: tensor.shape for tensor in session.get_inputs()}
    assert sizes == {"codes": ["B", "T", 16], "state": ["B", size], "history": ["B", 1]}
    assert [tensor.name for tensor in session.get_outputs()] == ["waveform", "state_out"]


def test_graph_tells_the_served_package_its_configuration(version: Path, tiny_checkpoint: Path) -> None:
    decoder = Checkpoint.open(str(tiny_checkpoint)).speech_tokenizer.decoder_config
    assert OnnxStepRunner(version / ONNX.filename).config == step_config(decoder)


def test_file_accepts_chunk_lengths_that_the_talker_does_not_use(version: Path, tiny_checkpoint: Path) -> None:
    reference = Reference(CodecStep.from_checkpoint(Checkpoint.open(str(tiny_checkpoint))))
    state, history = reference.cold(2) + 0.1, reference.history(2, 7)
    for frames in (3, 13, MAX_FRAMES):
        inputs = torch.full((2, frames, 16), 7, dtype=torch.int32, device=reference.device), state, history
        answers = ONNX.load(version / ONNX.filename)(*inputs)
        assert compare_step(reference(*inputs), answers).within(ONNX.limit), frames


def test_leaves_an_up_to_date_export_unchanged(tiny_code2wav: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    repository = shutil.copytree(tiny_code2wav, tmp_path / "repository")
    before = os.stat(repository / "code2wav" / "1" / ONNX.filename)
    code, output = run(tiny_checkpoint, repository)
    assert code == 0
    assert "up to date" in output
    assert os.stat(repository / "code2wav" / "1" / ONNX.filename) == before
    assert Alignment.read(repository / "qwen3_tts" / "1", Checkpoint.open(str(tiny_checkpoint))) is not None


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch, version: Path) -> list[Path]:
    """Replaces builds by copies of the exported file, and lists the copies."""
    built: list[Path] = []

    def build(step: CodecStep, path: Path) -> None:
        path.write_bytes((version / ONNX.filename).read_bytes())
        built.append(path)

    monkeypatch.setitem(cli.FORMS, "onnx", replace(ONNX, build=build))
    return built


def test_exports_again_when_forced(copies: list[Path], tiny_checkpoint: Path, tmp_path: Path, version: Path) -> None:
    shutil.copytree(version, tmp_path / "code2wav" / "1")
    assert run(tiny_checkpoint, tmp_path, "--force")[0] == 0
    assert len(copies) == 1


def test_exports_again_without_golden_cases(
    copies: list[Path], tiny_checkpoint: Path, tmp_path: Path, version: Path
) -> None:
    folder = shutil.copytree(version, tmp_path / "code2wav" / "1")
    (folder / GOLDEN).unlink()
    assert run(tiny_checkpoint, tmp_path)[0] == 0
    assert len(copies) == 1
    assert (folder / GOLDEN).is_file()


def test_golden_cases_match_the_step(version: Path, tiny_checkpoint: Path) -> None:
    checkpoint = Checkpoint.open(str(tiny_checkpoint))
    golden, step = Golden.read(version, checkpoint.codec_digest), CodecStep.from_checkpoint(checkpoint)
    assert golden.snr_db == ONNX.limit.snr_db
    assert (version / GOLDEN).stat().st_size < 1e6
    reference, rows = Reference(step), len(golden.codes)
    state = reference.cold(rows)
    for start, frames in ((0, 1), (1, 2), (3, 4)):
        codes = torch.from_numpy(golden.codes[:, start : start + frames]).to(state.device)
        waveform, state = reference(codes, state, reference.history(rows, start))
        found = golden.pcm[:, start * SAMPLES_PER_FRAME : (start + frames) * SAMPLES_PER_FRAME]
        np.testing.assert_allclose(found, waveform.cpu().numpy().clip(-1, 1) * 32767, atol=1)


def test_exports_again_when_made_from_another_codec(
    copies: list[Path], tiny_checkpoint: Path, tmp_path: Path, version: Path
) -> None:
    folder = shutil.copytree(version, tmp_path / "code2wav" / "1")
    manifest = CodecManifest.read(folder)
    manifest.model_copy(update={"codec_digest": "another"}).write(folder)
    assert run(tiny_checkpoint, tmp_path)[0] == 0
    assert len(copies) == 1
    assert CodecManifest.read(folder).codec_digest == manifest.codec_digest


def test_exports_again_when_not_verified_for_every_chunk_length(
    copies: list[Path], tiny_checkpoint: Path, tmp_path: Path, version: Path
) -> None:
    folder = shutil.copytree(version, tmp_path / "code2wav" / "1")
    CodecManifest.read(folder).model_copy(update={"chunk_frames": [1, 2, 4, 8]}).write(folder)
    assert run(tiny_checkpoint, tmp_path)[0] == 0
    assert len(copies) == 1
    assert CodecManifest.read(folder).chunk_frames == [*CHUNK_FRAMES]


def test_refuses_and_deletes_a_file_that_differs(
    monkeypatch: pytest.MonkeyPatch, version: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    def build(step: CodecStep, path: Path) -> None:
        model = onnx.load(version / ONNX.filename)
        *_, last_conv = (node for node in model.graph.node if node.op_type == "Conv")
        weight = next(tensor for tensor in model.graph.initializer if tensor.name == last_conv.input[1])
        weight.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weight) * 1.01, weight.name))
        onnx.save(model, path)

    monkeypatch.setitem(cli.FORMS, "onnx", replace(ONNX, build=build))
    code, output = run(tiny_checkpoint, tmp_path)
    assert code == 1
    message = output.replace("\n", " ")
    assert "differs from the PyTorch step" in message
    assert re.search(
        r"by rows x frames: (\d+ x \d+( of one row)?: \d+\.\d dB,? ){10}and \d+ more; deleted\. Export", message
    )
    assert not any((tmp_path / "code2wav" / "1").iterdir())


def test_a_refused_file_leaves_the_previous_export(
    monkeypatch: pytest.MonkeyPatch, copies: list[Path], version: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(version, tmp_path / "code2wav" / "1")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    strict = replace(cli.FORMS["onnx"], limit=Agreement(max_error=0.0, snr_db=500.0))
    monkeypatch.setitem(cli.FORMS, "onnx", strict)
    assert run(tiny_checkpoint, tmp_path, "--force")[0] == 1
    assert len(copies) == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_reports_an_unusable_checkpoint_without_a_traceback(tmp_path: Path) -> None:
    code, output = run(tmp_path, tmp_path)
    assert code == 1
    assert "missing from the checkpoint" in output.replace("\n", " ")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not JSON"),
        ('{"form": "onnx"}', "codec_digest: Field required"),
        ('{"form": "coreml"}', "form: Input should"),
        ('{"form": "onnx", "max_frames": 32}', "chunk_frames: Field required; .*run `python -m export` again"),
    ],
)
def test_unreadable_manifest_names_file_and_field(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(CheckpointError, match=message) as refused:
        CodecManifest.read(tmp_path)
    assert str(tmp_path / "model.json") in str(refused.value)


@pytest.mark.long
def test_missing_manifest_names_the_export_command(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="python -m export"):
        CodecManifest.read(tmp_path)


def test_exports_the_encoders_of_a_base_checkpoint(
    tiny_base_models: Path, checkpoint_of: CheckpointOf, tmp_path: Path
) -> None:
    repository = shutil.copytree(tiny_base_models, tmp_path / "repository")
    base = checkpoint_of("base")
    code, output = run(base, repository)
    assert code == 0
    assert output.count("up to date") == 3
    checkpoint = Checkpoint.open(str(base))
    hidden = checkpoint.config.talker_config.hidden_size
    for name, digest, size in (
        ("speaker_encoder", checkpoint.speaker_digest, hidden),
        ("codec_encoder", checkpoint.codec_digest, 16),
    ):
        manifest = read_encoder(repository / name / "1", digest, base)
        assert (manifest.form, manifest.output_size) == ("onnx", size)
        assert sorted(path.name for path in (repository / name).iterdir()) == ["1", "config.pbtxt"]
        with pytest.raises(CheckpointError, match=rf"{name}/1/model.json: exported from another checkpoint than"):
            read_encoder(repository / name / "1", "other", base)


@pytest.fixture
def copied_encoder(tiny_base_models: Path) -> Runtime:
    """Copies the exported speaker encoder in place of a build, which takes seconds."""

    def make(graph: TracedModule, path: Path) -> None:
        shutil.copyfile(tiny_base_models / SPEAKER_ENCODER.name / "1" / ONNX.encoders.filename, path)

    return replace(ONNX.encoders, make=make)


def test_exports_a_speaker_encoder_under_another_name(
    tiny_base_models: Path,
    checkpoint_of: CheckpointOf,
    copied_encoder: Runtime,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(cli.FORMS, "onnx", replace(ONNX, encoders=copied_encoder))
    repository = shutil.copytree(tiny_base_models, tmp_path / "repository")
    assert run(checkpoint_of("base"), repository, "--speaker-encoder", "speaker_encoder_large")[0] == 0
    config = (repository / "speaker_encoder_large" / "config.pbtxt").read_text()
    assert 'name: "speaker_encoder_large"' in config
    assert 'name: "speaker_encoder"' in (repository / "speaker_encoder" / "config.pbtxt").read_text()


def test_does_not_install_an_encoder_that_differs(
    checkpoint_of: CheckpointOf, copied_encoder: Runtime, tmp_path: Path
) -> None:
    checkpoint = Checkpoint.open(str(checkpoint_of("base")))
    strict = replace(SPEAKER_ENCODER, limit=-1.0)
    with Progress(disable=True) as progress, pytest.raises(ExportError, match="differs from PyTorch for 1 frames"):
        export_encoder(strict, checkpoint, tmp_path / "speaker_encoder", copied_encoder, progress)
    assert list((tmp_path / "speaker_encoder" / "1").iterdir()) == []
    assert not (tmp_path / "speaker_encoder" / "config.pbtxt").exists()
