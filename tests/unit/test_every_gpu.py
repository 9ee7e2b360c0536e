"""All kernels compile for every supported compute capability, and the forms of the released sizes fit its limits.

The launches of both models' graphs are recorded without computing anything (tests/fakes/every_gpu): what is compiled is
what a GPU of the capability, with its shared memory and multiprocessors, runs.
"""

import multiprocessing
import platform
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.every_gpu.compiling import Outcomes, compile_all, outcome
from tests.fakes.every_gpu.gpus import GPUS, Gpu, Resources

pytest.importorskip("triton", reason="Triton is not installed")
pytest.importorskip("cuda.bindings.nvrtc", reason="NVRTC is not installed")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="Triton carries NVIDIA's assembler for x86-64 only"),
    pytest.mark.timeout(1200),
]

REPOSITORY = Path(__file__).parents[2] / "model_repository"
FOLDERS = {
    "talker": REPOSITORY / "qwen3_tts/1/qwen3_tts_engine/talker/kernels",
    "codec": REPOSITORY / "code2wav/1/code2wav_step/kernels",
}
CUDA = re.compile(r'^extern "C" __global__ .*\n(\w+)\(', re.MULTILINE)
TRITON = re.compile(r"^@triton\.jit\ndef (\w+_kernel)\(", re.MULTILINE)
# Sources of Hopper's path.
HOPPER, HOPPER_SOURCES = "9.0", ("tile_linear.cu", "resident_unit.cu", "streamed_product.cu", "skinny_product.cu")
PROCESSES = 2
# Returns the outcomes of a capability.
Compiled = Callable[[str], Outcomes]


def cases() -> Iterator[Any]:
    """A capability and a kernel that its GPUs run, by the sources."""
    for capability in GPUS:
        for model, folder in FOLDERS.items():
            for path in sorted([*folder.glob("*.cu"), *folder.glob("*.py")]):
                if capability == HOPPER or path.name not in HOPPER_SOURCES:
                    for function in (CUDA if path.suffix == ".cu" else TRITON).findall(path.read_text()):
                        kernel = f"{model}-{function}"
                        yield pytest.param(capability, kernel, id=f"{capability}-{kernel}")


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Compiled]:
    pool = ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"))
    with pytest.MonkeyPatch.context() as environment:
        environment.delenv("TRITON_INTERPRET", raising=False)
        for variable in ("TRITON_CACHE_DIR", "XDG_CACHE_HOME"):
            environment.setenv(variable, str(tmp_path_factory.mktemp(variable)))
        futures = {capability: pool.submit(compile_all, capability) for capability in GPUS}
    yield lambda capability: futures[capability].result()
    pool.shutdown(cancel_futures=True)


def problems(forms: dict[str, dict[str, Any]], gpu: Gpu) -> dict[str, list[str]]:
    """Problems by form, without forms that have none."""
    found = {
        form: [taken["error"]] if "error" in taken else Resources(**taken).problems(gpu)
        for form, taken in forms.items()
    }
    return {form: reasons for form, reasons in found.items() if reasons}


@pytest.mark.parametrize(("capability", "kernel"), list(cases()))
def test_a_kernel_compiles_and_fits(compiled: Compiled, capability: str, kernel: str) -> None:
    forms = compiled(capability).get(kernel)
    assert forms, "no graph launches it"
    assert problems(forms, GPUS[capability]) == {}


@pytest.mark.parametrize("capability", GPUS)
def test_no_other_kernels_are_launched(compiled: Compiled, capability: str) -> None:
    assert {case.id for case in cases()} >= {f"{capability}-{kernel}" for kernel in compiled(capability)}


def test_a_form_with_too_much_shared_memory_is_rejected(compiled: Compiled) -> None:
    """A tile that fits an A100, but not an L4."""
    found = problems(compiled("8.0")["codec-product_kernel"], GPUS["8.9"])
    assert found
    assert all("BLOCK_M=16 BLOCK_N=64 BLOCK_K=256" in form for form in found)
    assert {tuple(reasons) for reasons in found.values()} == {("122880 bytes of shared memory of 101376",)}


@pytest.mark.parametrize(
    ("taken", "reason"),
    [
        (Resources(threads=512, registers=129, shared_bytes=0), "69632 registers of 65536"),
        (Resources(threads=1056, registers=32, shared_bytes=0), "1056 threads of 1024"),
        (Resources(128, 128, 0, tensor_columns=513), "513 columns of tensor memory of 512"),
    ],
)
def test_other_limits_are_checked(taken: Resources, reason: str) -> None:
    assert taken.problems(GPUS["10.0"]) == [reason]


def test_a_source_that_does_not_compile_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """tile_linear.cu has instructions that other GPUs than Hopper lack."""
    from qwen3_tts_engine.talker.kernels.tile_linear import tile_linear
    from tests.fakes.every_gpu.kernels import CudaKernel

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    form = tile_linear(4096, 2048, 64, NORM=1)
    assert form is not None
    kernel = CudaKernel(FOLDERS["talker"] / form.source, form.function, form.macros, form.threads, form.shared_bytes)
    [[reason]] = problems({"": outcome(kernel, GPUS["8.9"])}, GPUS["8.9"]).values()
    assert "tile_linear.cu does not compile with --gpu-architecture=sm_89" in reason
