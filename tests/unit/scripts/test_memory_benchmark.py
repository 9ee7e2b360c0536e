"""scripts.benchmarks.memory finds the plan in a server's log, as the engine writes it."""

from qwen3_tts_engine.talker.memory_plan import GIB, MemoryPlan, gib
from scripts.benchmarks.memory import PLAN


def test_the_plan_is_found_as_it_is_logged() -> None:
    for streams in (1, 64):
        plan = MemoryPlan(streams, 8192, 3 * GIB, GIB, 0, GIB, GIB)
        line = f'I1128 1 pb_stub.cc:401] "GPU memory: {gib(7 * GIB)} of {gib(8 * GIB)} GiB free; {plan}"'
        found = PLAN.search(f"other\n{line}\nmore")
        assert found
        assert int(found["streams"]) == streams
        assert found["parts"] == str(plan)
