"""The fleet's table on the console."""

from collections.abc import Iterator, Sequence
from enum import Enum

from scripts.server.fleet.plan import ServerPlan


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    RESTARTING = "restarting"
    ENDED = "ended"
    FAILED = "failed"


COLUMNS = ("server", "GPU", "gRPC", "HTTP", "metrics", "process", "state")
Row = tuple[ServerPlan, int, State]


def table(rows: Sequence[Row], address: str) -> Iterator[str]:
    """Lines; `rows` are servers with the process ids of their launchers."""
    cells = [COLUMNS, *map(_cells, rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
    ready = sum(state is State.READY for _, _, state in rows)
    yield f"{ready} of {len(rows)} servers are ready behind {address}"


def _cells(row: Row) -> tuple[str, ...]:
    plan, process, state = row
    ports = (plan.ports.grpc, plan.ports.http, plan.ports.metrics)
    return (str(plan.number), plan.gpu or "CPU", *map(str, ports), str(process), state.value)
