"""Free memory, and which of the server's other models have taken theirs."""

import time
from pathlib import Path

import pytest
import torch

from qwen3_tts_engine.talker import gpu_memory
from qwen3_tts_engine.talker.gpu_memory import LOADING_SECONDS, Processes, account, find_processes, measure
from qwen3_tts_engine.talker.memory_plan import CONTEXT_BYTES, GIB, GpuMemory, OtherModel

CODEC, PLAN = OtherModel("code2wav", 2 * GIB, has_process=True), OtherModel("code2wav", 2 * GIB, has_process=False)
GPU = torch.device("cuda:0")


def stub(model: str, server: int) -> list[str]:
    path, region = f"/repository/{model}/1/model.py", "triton_python_backend_shm_region_1"
    settings = ["67108864", "16777216", str(server), "/backends/python", "336", f"{model}_0_0", "DEFAULT", ""]
    return ["/backends/python/triton_python_backend_stub", path, region, *settings]


def guard(model: str, server: int) -> list[str]:
    return ["/usr/bin/python3", "-I", "-S", "/repository/guard.py", model, str(server), "99", "4", "5", ""]


def test_a_model_is_loaded_once_its_guard_runs() -> None:
    models, shell = ["code2wav", "codec_encoder"], ["bash", ""]
    commands = [shell, stub("code2wav", 7), stub("codec_encoder", 7), guard("codec_encoder", 7), stub("qwen3_tts", 7)]
    assert find_processes(models, {"7", "8"}, commands) == Processes({"code2wav"}, {"codec_encoder"})
    assert find_processes(models, {"7"}, [shell]) == Processes(set(), set())


def test_models_of_another_server_do_not_count() -> None:
    commands = [stub("code2wav", 8), guard("code2wav", 8)]
    assert find_processes(["code2wav"], {"7"}, commands) == Processes(set(), set())


def test_a_loaded_model_is_not_awaited() -> None:
    assert account(5 * GIB, 8 * GIB, [CODEC], set()) == GpuMemory(5 * GIB, 8 * GIB, 0, 2 * GIB)
    assert account(5 * GIB, 8 * GIB, [CODEC], {"code2wav"}) == GpuMemory(5 * GIB, 8 * GIB, 2 * GIB, 0)


def test_memory_in_use_counts_as_taken_by_what_tritonserver_loads() -> None:
    free = 8 * GIB - CONTEXT_BYTES
    assert account(free, 8 * GIB, [PLAN], set()) == GpuMemory(free, 8 * GIB, 0, 2 * GIB)
    assert account(free - GIB, 8 * GIB, [PLAN], set()) == GpuMemory(free - GIB, 8 * GIB, 0, 2 * GIB)
    assert account(GIB, 8 * GIB, [PLAN], set()) == GpuMemory(GIB, 8 * GIB, 2 * GIB, 0)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Each pause lasts a minute; code2wav is loaded after the first."""
    seconds = [0.0]

    def commands() -> list[list[str]]:
        return [stub("code2wav", 7), *([guard("code2wav", 7)] if seconds[0] else [])]

    monkeypatch.setattr(gpu_memory, "_servers", lambda: {"7"})
    monkeypatch.setattr(gpu_memory, "_commands", commands)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (4 * GIB, 8 * GIB))
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(time, "sleep", lambda _: seconds.__setitem__(0, seconds[0] + 60))
    return seconds


def test_waits_for_a_model_that_loads_only_where_memory_is_short(pauses: list[float]) -> None:
    assert measure(GPU, [CODEC], lambda memory: True).awaited == CODEC.size
    assert pauses == [0]
    assert measure(GPU, [CODEC], lambda memory: memory.awaited == 0).taken == CODEC.size
    assert pauses == [60]


def test_does_not_wait_forever(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "_commands", lambda: [stub("code2wav", 7)])
    assert measure(GPU, [CODEC], lambda memory: False).awaited == CODEC.size
    assert LOADING_SECONDS < pauses[0] < LOADING_SECONDS + 120


def test_does_not_wait_for_a_model_that_is_not_there(pauses: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "_commands", list)
    assert measure(GPU, [CODEC], lambda memory: False).awaited == CODEC.size
    assert pauses == [0]


def test_reads_the_processes_of_this_machine() -> None:
    if not Path("/proc/self/cmdline").exists():
        pytest.skip("no /proc")
    assert any("pytest" in " ".join(command) for command in gpu_memory._commands())
    assert all(number.isdecimal() for number in gpu_memory._servers())
