"""The figures of a run as a terminal table."""

from collections.abc import Callable, Sequence
from typing import Any

_Row = dict[str, Any]


def _at(row: _Row, *path: str) -> Any:
    value: Any = row
    for key in path:
        value = None if value is None else value.get(key)
    return value


def _number(digits: int, *path: str) -> Callable[[_Row], str]:
    def cell(row: _Row) -> str:
        value = _at(row, *path)
        return "-" if value is None else f"{value:.{digits}f}"

    return cell


def _pair(name: str) -> Callable[[_Row], str]:
    p50, p95 = _number(1, name, "p50"), _number(1, name, "p95")
    return lambda row: f"{p50(row)} / {p95(row)}"


def _percent(*path: str) -> Callable[[_Row], str]:
    def cell(row: _Row) -> str:
        value = _at(row, *path)
        return "-" if value is None else f"{100 * value:.1f}"

    return cell


def load_name(mode: str, value: float) -> str:
    names = {"closed": f"c={value:g}", "open": f"{value:g}/s", "burst": f"burst={value:g}", "first": "first"}
    return names[mode]


COLUMNS: dict[str, Callable[[_Row], str]] = {
    "load": lambda row: load_name(row["mode"], row["value"]),
    "requests": lambda row: str(row["requests"]),
    "failed": lambda row: str(row["requests"] - row["outcomes"].get("ok", 0)),
    "TTFA p50/p95 ms": _pair("ttfa_ms"),
    "audible p50/p95 ms": _pair("audible_ttfa_ms"),
    "silence ms": _number(0, "withheld_silence_ms", "p50"),
    "chunk ms": _number(0, "first_chunk_ms", "p50"),
    "E2E p50 s": lambda row: "-" if row["e2el_ms"] is None else f"{row['e2el_ms']['p50'] / 1e3:.2f}",
    "RTF p50": _number(3, "rtf", "p50"),
    "audio-s/s": _number(1, "audio_throughput"),
    "stall p95 ms": _number(1, "rebuffering", "largest_stall_ms", "p95"),
    "C50 %": _percent("rebuffering", "c50"),
    "C50 nr %": _percent("never_rebuffering", "c50"),
    "late p99 ms": _number(1, "dispatch_lateness_ms", "p99"),
    "lag p99 ms": _number(1, "client_loop_lag_p99_ms"),
    "cpu": _number(2, "client_cpu_share"),
}


def cells(row: _Row) -> list[str]:
    return [cell(row) for cell in COLUMNS.values()]


def text_table(rows: Sequence[_Row]) -> str:
    """RTF is wall / audio; stalls and C50 are for a player that rebuffers, `nr` for one that never does.

    `silence` is the leading silence that the server did not send; `late` is the dispatch lateness of an open loop; lag
    and cpu are those of this client.
    """
    return aligned([list(COLUMNS), *map(cells, rows)])


def aligned(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.rjust, line, widths)) for line in lines)
