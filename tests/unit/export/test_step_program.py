"""Kernel launches of the TensorRT plugin: recording, the program file and replay by the plugin's C++."""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from code2wav_step import kernels
from code2wav_step import weights as step_weights
from code2wav_step.device_rows import row_addresses
from code2wav_step.kernel_ops import KernelOps
from code2wav_step.kernels import resident_unit
from code2wav_step.kernels.resident_unit import ResidentUnit
from code2wav_step.kernels.skinny_product import SkinnyProduct
from code2wav_step.kernels.streamed_product import StreamedProduct
from code2wav_step.rows import ZERO_ROW
from code2wav_step.step import Step
from code2wav_step.torch_ops import to_int16
from code2wav_step.weights import StepWeights
from export.forms import python_form
from export.modules.codec import CodecStep
from export.tensorrt.launches import ALIGNMENT, Address, Base, Constants, Launch, Recording, Temporary, plan, record
from export.tensorrt.step_program import Compiled, Kernel, _argument, compile_all, write_program
from qwen3_tts_engine.codec.contract import NUM_ROWS, PLAN_ROWS_PART, PUBLIC_ROWS, plan_rows
from tests.fakes.codec_layers import small_step
from tests.fakes.compiled_plugin import CompiledPlugin

pytest.importorskip("triton", reason="Triton is not installed")
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="tests/gpu runs the compiled kernels")

CPU = torch.device("cpu")
SHAPES = ((1, 1), (2, 1), (3, 2))
SCRATCH = [0, 0]
# Inputs, output and workspace of a call.
BASES = [Base.CODES, Base.PLACES, Base.PCM, Base.WORKSPACE]
NOWHERE = [0] * len(BASES)
KEY, OTHER_KEY = 5, 6
# Rows with memory; the one behind them takes writes to no row.
NUM_ROWS_USED = 4


@pytest.fixture(scope="module")
def weights() -> StepWeights:
    return weights_of(small_step())


def weights_of(step: CodecStep) -> StepWeights:
    return step_weights.assemble(python_form.step_config(step.config), python_form.folded(step), torch.float32)


class Memory:
    """Memory of a call: random codes, the rows that its places name, and bytes of 255 everywhere else."""

    def __init__(self, weights: StepWeights, recording: Recording, constants: Constants, places: np.ndarray) -> None:
        rows, frames, config = recording.rows, recording.frames, weights.config
        shape = (rows, frames, config.num_quantizers)
        self.codes = torch.randint(-1, config.codebook_size + 1, shape, dtype=torch.int32)
        self.pcm = torch.full((rows, frames * config.samples_per_frame), -1, dtype=torch.int16)
        self.states = torch.randn(NUM_ROWS_USED + 1, config.state_size)
        self.states[ZERO_ROW] = 0.0
        addresses = torch.zeros(NUM_ROWS + 1, dtype=torch.int64)
        used = np.arange(NUM_ROWS_USED + 1)
        addresses[used] = torch.from_numpy(row_addresses(self.states, used))
        addresses[NUM_ROWS] = addresses[NUM_ROWS_USED]
        self.keys = torch.zeros(NUM_ROWS, dtype=torch.int32)
        workspace = torch.full((recording.workspace,), 255, dtype=torch.uint8)
        blocks = torch.frombuffer(bytearray(b"".join(constants.blocks())), dtype=torch.uint8)
        typed = torch.empty(1, config.state_size)
        self._parts = [self.codes, torch.from_numpy(places), self.pcm, workspace, blocks, addresses, self.keys, typed]

    def argument(self, argument: Any) -> Any:
        if not isinstance(argument, Address):
            return argument
        return self._parts[argument.base].view(-1).view(torch.uint8)[argument.offset :].view(argument.dtype)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_recorded_launches_compute_the_step(weights: StepWeights) -> None:
    """A stream that continues, beside a caller with a wrong key."""
    constants, config = Constants(), weights.config
    recording = record(weights, constants, 2, 1)
    places = np.array([[1, 2, 40, KEY], [1, 1, 40, OTHER_KEY]], np.int32)
    memory = Memory(weights, recording, constants, places)
    memory.keys[1] = KEY
    states = memory.states.clone()
    for launch in recording.launches:
        # The interpreter lacks the hardware's fast sine.
        options = launch.options | ({"FAST": False} if "FAST" in launch.options else {})
        launch.kernel[launch.grid](*map(memory.argument, launch.arguments), **options)
    history = torch.full((2, 1), 40, dtype=torch.int32)
    waveform, state = Step(weights, KernelOps(config, CPU))(memory.codes, states[[1, ZERO_ROW]], history)
    assert torch.equal(memory.pcm[0], to_int16(waveform, config.contract)[0])
    assert torch.equal(memory.states[2], state[0])
    assert memory.pcm[1, :2].tolist() == [config.contract.no_sample] * 2
    assert torch.equal(memory.states[:2], states[:2])
    assert memory.keys[:4].tolist() == [0, KEY, KEY, 0]


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
    """It has their weights, too, once."""
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
    address = Address(Base.CONSTANTS, 16, torch.float16)
    [compiled] = compile_all([Launch(form, (60, 1), (address, None, 64), {})])
    image = repr((form.source, form.macros, "sm_90a")).encode()
    assert compiled == Compiled(Kernel("unit", image, form.threads, form.shared_bytes), (0, 1, 2))
    assert _argument(None) == _argument(0)


def stand_in_compile(launches: Sequence[Launch]) -> list[Compiled]:
    """Kernels identified by name and options; numbers and addresses are parameters."""
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
    plugin.set_memory(1 << 40)
    plugin.launches()
    opened, _ = plugin.open(program)
    yield opened
    plugin.close(opened)


@pytest.mark.parametrize("shape", SHAPES)
def test_plugin_replays_the_recorded_launches(
    plugin: CompiledPlugin, step: int, weights: StepWeights, shape: tuple[int, int]
) -> None:
    constants = Constants()
    recording = next(r for s in SHAPES if (r := record(weights, constants, *s)) and s == shape)
    memory = Allocated.of(plugin)
    bases = {base: 0x1000 * (base + 1) for base in BASES}
    assert plugin.run(step, *shape, list(bases.values())) == (0, "")
    bases |= {Base.CONSTANTS: memory.constants, Base.ADDRESSES: memory.addresses, Base.KEYS: memory.keys}

    def value(argument: Any) -> int:
        if isinstance(argument, Address):
            return bases.get(argument.base, 0) + argument.offset
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


@dataclass(frozen=True)
class Allocated:
    """Addresses of what the plugin has allocated, and bytes of the states."""

    constants: int
    states: int
    keys: int
    addresses: int
    state_bytes: int

    @classmethod
    def of(cls, plugin: CompiledPlugin) -> "Allocated":
        driver = plugin.launches()
        uploads, zeros = ([[*map(int, rest)] for word, *rest in driver if word == kind] for kind in ("upload", "zeros"))
        (constants, _), (states, state_bytes), (keys, key_bytes), (addresses, size) = uploads[0], *zeros
        assert uploads[1] == [addresses, size]
        assert (key_bytes, size) == (4 * NUM_ROWS, 8 * (NUM_ROWS + 1))
        return cls(constants, states, keys, addresses, state_bytes)


@pytest.mark.parametrize("rows", [PUBLIC_ROWS, PUBLIC_ROWS + 1, 200, 2 * NUM_ROWS])
@pytest.mark.parametrize("share", [None, "", "0.5"])
def test_rows_take_their_part_of_memory(
    plugin: CompiledPlugin, program: bytes, weights: StepWeights, rows: int, share: str | None
) -> None:
    """The first rows, then the public ones: the talker counts on as many."""
    state_bytes = 2 * weights.config.state_size
    total = int(PLAN_ROWS_PART * rows * state_bytes / float(share or 1))
    fitting = plan_rows(int(float(share or 1) * total), state_bytes)
    assert fitting == min(rows, NUM_ROWS)
    plugin.set_memory(total, share)
    plugin.launches()
    opened, message = plugin.open(program)
    if fitting <= PUBLIC_ROWS:
        assert opened is None
        assert f"memory for {fitting} rows, more than {PUBLIC_ROWS} are required" in message
        return
    allocated = Allocated.of(plugin)
    assert allocated.state_bytes == (fitting + 1) * state_bytes
    with_memory = [*range(fitting - PUBLIC_ROWS), *range(NUM_ROWS - PUBLIC_ROWS, NUM_ROWS + 1)]
    expected = np.zeros(NUM_ROWS + 1, np.int64)
    expected[with_memory] = allocated.states + np.arange(fitting + 1) * state_bytes
    assert plugin.read(allocated.addresses, 8 * (NUM_ROWS + 1)) == expected.tobytes()
    plugin.close(opened)


def test_refuses_a_shape_that_was_not_recorded(plugin: CompiledPlugin, step: int) -> None:
    assert plugin.run(step, 4, 3, NOWHERE) == (1, "code2wav: the plan was not built for 4 x 3\n")


@pytest.mark.parametrize("corrupt", [lambda p: b"X" + p[1:], lambda p: p[: len(p) // 2], lambda p: b""])
def test_refuses_an_invalid_program_file(
    plugin: CompiledPlugin, program: bytes, corrupt: Callable[[bytes], bytes]
) -> None:
    opened, message = plugin.open(corrupt(program))
    assert opened is None
    assert message.startswith("code2wav: ")
