"""The encoders as programs of torch.export in the released size: GPU against CPU, and the time of a reference."""

import statistics
import time
from pathlib import Path

import pytest
import torch
from torch import Tensor

from encoder_program.program import EncoderProgram
from export.encoders import CASES, CODEC_ENCODER, SPEAKER_ENCODER, EncoderExport, graph
from export.forms import program_form
from tests.gpu.conftest import DEVICE
from tests.unit.export.test_encoders_tensorrt import synthetic

# Frames of a reference of 6.6 s.
TYPICAL = 83
REPEATS = 20


@pytest.fixture(scope="module", params=[SPEAKER_ENCODER, CODEC_ENCODER], ids=lambda encoder: encoder.name)
def encoder(request: pytest.FixtureRequest) -> EncoderExport:
    encoder: EncoderExport = request.param
    return encoder


@pytest.fixture(scope="module")
def path(encoder: EncoderExport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp(encoder.name) / program_form.PROGRAM.filename
    program_form.make(graph(encoder, synthetic(encoder, "1.7b")), path)
    return path


@pytest.fixture(scope="module")
def program(path: Path) -> EncoderProgram:
    started = time.monotonic()
    program = EncoderProgram.load(path, DEVICE)
    loaded = time.monotonic()
    program.warm_up()
    reserved = torch.cuda.memory_reserved(DEVICE) / 1e6
    print(f"\nload {loaded - started:.1f} s, warm-up {time.monotonic() - loaded:.1f} s, {reserved:.0f} MB reserved")
    return program


def inputs(encoder: EncoderExport, frames: int) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in encoder.inputs(frames).items()}


def milliseconds(program: EncoderProgram, given: dict[str, Tensor]) -> float:
    started = time.perf_counter()
    program(given)
    return (time.perf_counter() - started) * 1e3


def test_gpu_agrees_with_cpu(encoder: EncoderExport, path: Path, program: EncoderProgram) -> None:
    on_cpu = EncoderProgram.load(path, torch.device("cpu"))
    for frames in CASES:
        given = inputs(encoder, frames)
        expected, found = on_cpu(given), program(given)
        assert found.device.type == "cpu"
        assert found.shape == expected.shape
        error = encoder.error(expected.numpy(), found.numpy())
        print(f"{frames} frames: {encoder.agreement.format(error)}")
        assert error <= encoder.limit


def test_equal_references_give_equal_output(encoder: EncoderExport, program: EncoderProgram) -> None:
    given = inputs(encoder, TYPICAL)
    first = program(given)
    assert all(torch.equal(program(given), first) for _ in range(REPEATS))


def test_new_length_takes_no_longer_than_a_known_one(encoder: EncoderExport, program: EncoderProgram) -> None:
    """Every reference has a length of its own: nothing may be planned, compiled or allocated for it."""
    new = [milliseconds(program, inputs(encoder, frames)) for frames in range(TYPICAL - REPEATS // 2, TYPICAL)]
    known = [milliseconds(program, inputs(encoder, TYPICAL)) for _ in range(REPEATS)][1:]
    print(f"\n{encoder.name}, 6.6 s: {statistics.median(known):.1f} ms, largest {max(known):.1f} ms; ", end="")
    print(f"slightly shorter ones, each for the first time: {statistics.median(new):.1f} ms, largest {max(new):.1f} ms")
    assert statistics.median(new) < 2 * statistics.median(known)


def test_wrong_number_of_samples_does_not_end_the_process(encoder: EncoderExport, program: EncoderProgram) -> None:
    if encoder is not CODEC_ENCODER:
        pytest.skip("the speaker encoder takes no number of samples")
    for count in (-(2**31), 0, 2**31 - 1):
        given = inputs(encoder, 3) | {"num_samples": torch.tensor([[count]], dtype=torch.int32)}
        assert program(given).shape == (1, 3, 16)
