"""Kernel launches of the TensorRT plugin: recording, the program file and replay by the plugin's C++."""

import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from code2wav_step import kernels
from code2wav_step import weights as step_weights
from code2wav_step.kernel_ops import KernelOps
from code2wav_step.kernels import resident_unit
from code2wav_step.kernels.resident_unit import ResidentUnit
from code2wav_step.kernels.skinny_product import SkinnyProduct
from code2wav_step.kernels.streamed_product import StreamedProduct
from code2wav_step.step import Step
from code2wav_step.weights import StepWeights
from export.forms import python_form
from export.modules.codec import CodecStep
from export.tensorrt.launches import ALIGNMENT, Base, Constants, Launch, Place, Recording, Temporary, plan, record
from export.tensorrt.step_program import Compiled, Kernel, _argument, compile_all, write_program
from tests.fakes.codec_layers import small_step
from tests.fakes.compiled_plugin import CompiledPlugin

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the compiled kernels")

CPU = torch.device("cpu")
SHAPES = ((1, 1), (2, 1), (3, 2))
SCRATCH = [0, 0]
NOWHERE = [0] * Base.CONSTANTS


@pytest.fixture(scope="module")
def weights() -> StepWeights:
    return weights_of(small_step())


def weights_of(step: CodecStep) -> StepWeights:
    return step_weights.assemble(python_form.step_config(step.config), python_form.folded(step), torch.float32)


class Memory:
    """The tensors of a call: random inputs, and NaN everywhere else."""

    def __init__(self, weights: StepWeights, recording: Recording, constants: Constants) -> None:
        rows, frames, config = recording.rows, recording.frames, weights.config
        self.inputs = (
            torch.randint(-1, config.codebook_size + 1, (rows, frames, config.num_quantizers), dtype=torch.int32),
            torch.randn(rows, config.state_size),
            torch.arange(rows, dtype=torch.int32)[:, None] * 40,
        )
        self.waveform = torch.full((rows, frames * config.samples_per_frame), torch.nan)
        self.state = torch.full((rows, config.state_size), torch.nan)
        self.workspace = torch.full((recording.workspace,), 255, dtype=torch.uint8)
        blocks = torch.frombuffer(bytearray(b"".join(constants.blocks())), dtype=torch.uint8)
        self.places = [*self.inputs, self.waveform, self.state, self.workspace, blocks]

    def argument(self, argument: Any) -> Any:
        if not isinstance(argument, Place):
            return argument
        return self.places[argument.base].view(-1).view(torch.uint8)[argument.offset :].view(argument.dtype)


@pytest.mark.timeout(900)
def test_recorded_launches_compute_the_step(weights: StepWeights) -> None:
    constants = Constants()
    recording = record(weights, constants, 2, 1)
    memory = Memory(weights, recording, constants)
    for launch in recording.launches:
        # The interpreter lacks the hardware's fast sine.
        options = launch.options | ({"FAST": False} if "FAST" in launch.options else {})
        launch.kernel[launch.grid](*map(memory.argument, launch.arguments), **options)
    waveform, state = Step(weights, KernelOps(weights.config, CPU))(*memory.inputs)
    assert torch.isfinite(waveform).all()
    assert torch.equal(memory.waveform, waveform)
    assert torch.equal(memory.state, state)


def test_temporaries_with_overlapping_lifetimes_do_not_overlap() -> None:
    sizes = (300, 7, 512, 1, 4096, 256, 90)
    temporaries = {i: Temporary(size, first=i % 4, last=i % 4 + i // 2) for i, size in enumerate(sizes)}
    offsets, end = plan(temporaries)
    for (i, a), (j, b) in combinations(temporaries.items(), 2):
        apart = offsets[i] + a.size <= offsets[j] or offsets[j] + b.size <= offsets[i]
        assert apart or not a.lives_with(b)
    assert end < sum(sizes), "memory is reused"
    assert all(offset % ALIGNMENT == 0 and offset + temporaries[i].size <= end for i, offset in offsets.items())


def test_constants_are_stored_once_for_all_shapes(weights: StepWeights) -> None:
    constants = Constants()
    record(weights, constants, 2, 1)
    first = constants.size
    record(weights, constants, 2, 1)
    tables = constants.size - first
    assert constants.size % ALIGNMENT == 0
    assert tables < first / 100, "the weights are stored again"


def test_a_recording_for_hopper_has_its_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also their weights, once."""
    monkeypatch.setattr(resident_unit, "processors", lambda: 132)
    weights, constants = weights_of(small_step(decoder_dim=1536)), Constants()
    recording = record(weights, constants, 64, 4)
    forms = {type(launch.kernel) for launch in recording.launches}
    assert {ResidentUnit, StreamedProduct} < forms
    assert SkinnyProduct in {type(launch.kernel) for launch in record(weights, constants, 1, 1).launches}
    first = constants.size
    record(weights, constants, 64, 4)
    assert constants.size - first < first / 100


def test_a_cuda_kernel_is_compiled_in_its_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """All its arguments are parameters; a tensor that it is to do without is a null pointer."""
    compiler = SimpleNamespace(architecture=lambda: "sm_90a", compiled=lambda *parts: repr(parts).encode())
    monkeypatch.setitem(sys.modules, "code2wav_step.kernels.cuda_module", compiler)
    monkeypatch.setattr(kernels, "cuda_module", compiler, raising=False)
    form = ResidentUnit(7, 3)
    place = Place(Base.CONSTANTS, 16, torch.float16)
    [compiled] = compile_all([Launch(form, (60, 1), (place, None, 64), {})])
    image = repr((form.source, form.macros, "sm_90a")).encode()
    assert compiled == Compiled(Kernel("unit", image, form.threads, form.shared_bytes), (0, 1, 2))
    assert _argument(None) == _argument(0)


def stand_in_compile(launches: Sequence[Launch]) -> list[Compiled]:
    """Kernels identified by name and options; numbers and places are parameters."""
    return [_stand_in(launch) for launch in launches]


def _stand_in(launch: Launch) -> Compiled:
    taken = tuple(i for i, argument in enumerate(launch.arguments) if argument is not None)
    tag = f"{launch.kernel.fn.__name__}{sorted((k, str(v)) for k, v in launch.options.items())}".replace(" ", "")
    shared = 64 * 1024 if "product" in tag else 0
    return Compiled(Kernel(launch.kernel.fn.__name__, f"{tag}#{len(taken)}\0".encode(), 128, shared), taken)


@pytest.fixture(scope="module")
def program(weights: StepWeights, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("program") / "step.program"
    write_program(weights, SHAPES, path, stand_in_compile)
    return path.read_bytes()


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CompiledPlugin]:
    try:
        plugin = CompiledPlugin(tmp_path_factory.mktemp("plugin"))
    except FileNotFoundError:
        pytest.skip("no g++")
    yield plugin
    plugin.end()


@pytest.fixture
def step(plugin: CompiledPlugin, program: bytes) -> Iterator[int]:
    """The opened program; `launches` then returns only what it launches."""
    plugin.launches("")
    opened, _ = plugin.open(program)
    yield opened
    plugin.close(opened)


@pytest.mark.parametrize("shape", SHAPES)
def test_plugin_replays_the_recorded_launches(
    plugin: CompiledPlugin, step: int, weights: StepWeights, shape: tuple[int, int]
) -> None:
    constants = Constants()
    recording = next(r for s in SHAPES if (r := record(weights, constants, *s)) and s == shape)
    [[begin]] = plugin.launches("constants")
    bases = [0x1000 * (i + 1) for i in range(Base.CONSTANTS)]
    assert plugin.run(step, *shape, bases) == (0, "")

    def value(argument: Any) -> int:
        if isinstance(argument, Place):
            return [*bases, int(begin)][argument.base] + argument.offset
        if isinstance(argument, float):
            return int(torch.tensor(argument).view(torch.int32))
        return int(argument)

    expected = []
    for launch, found in zip(recording.launches, stand_in_compile(recording.launches), strict=True):
        image = found.kernel.cubin.rstrip(b"\0").decode()
        sizes = [*launch.grid, 1, 1][:3]
        values = [value(launch.arguments[i]) for i in found.parameters]
        expected.append([image, *map(str, [*sizes, found.kernel.threads, found.kernel.shared, *values, *SCRATCH])])
    assert plugin.launches("launch") == expected


def test_plugin_requests_large_shared_memory(plugin: CompiledPlugin, step: int) -> None:
    requested = plugin.launches("attribute")
    assert requested
    assert all("product" in image and rest == ["8", str(64 * 1024)] for image, *rest in requested)


def test_workspace_is_that_of_the_largest_recorded_shape_within_the_limits(
    plugin: CompiledPlugin, step: int, weights: StepWeights
) -> None:
    sizes = {shape: record(weights, Constants(), *shape).workspace for shape in SHAPES}
    for rows, frames in ((1, 1), (2, 1), (3, 1), (3, 2), (64, 16)):
        fits = [size for (r, f), size in sizes.items() if r <= rows and f <= frames]
        assert plugin.workspace(step, rows, frames) == max(fits)


def test_equal_programs_share_their_constants(plugin: CompiledPlugin, program: bytes) -> None:
    plugin.launches("")
    (first, _), (second, _) = plugin.open(program), plugin.open(program)
    assert len(plugin.launches("constants")) == 1
    plugin.close(first)
    assert plugin.run(second, 1, 1, NOWHERE) == (0, ""), "the constants are still allocated"
    plugin.close(second)
    plugin.launches("")
    third, _ = plugin.open(program)
    assert len(plugin.launches("constants")) == 1, "the constants were freed"
    plugin.close(third)


def test_refuses_a_shape_that_was_not_recorded(plugin: CompiledPlugin, step: int) -> None:
    assert plugin.run(step, 4, 3, NOWHERE) == (1, "code2wav: the plan was not built for 4 x 3\n")


@pytest.mark.parametrize("corrupt", [lambda p: b"X" + p[1:], lambda p: p[: len(p) // 2], lambda p: b""])
def test_refuses_an_invalid_program_file(
    plugin: CompiledPlugin, program: bytes, corrupt: Callable[[bytes], bytes]
) -> None:
    opened, message = plugin.open(corrupt(program))
    assert opened is None
    assert message.startswith("code2wav: ")
