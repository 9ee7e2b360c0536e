"""A measurement, and one line of the table per product and number of rows."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from scripts.benchmarks.products.candidates import REFERENCES, Item

# Of the worst row, relative to its norm. Rounding to bfloat16 costs 0.5 % where norm and gate are separate kernels.
MAX_ERROR = 8e-3


@dataclass(frozen=True)
class Measurement:
    """`relative_error` is None if an output was not finite; `failure` says why there is no measurement."""

    us: float | None = None
    relative_error: float | None = None
    same_bits: bool | None = None
    failure: str | None = None

    @property
    def is_correct(self) -> bool:
        return self.relative_error is not None and self.relative_error < MAX_ERROR

    @property
    def is_usable(self) -> bool:
        return self.is_correct and self.same_bits is True


Results = Mapping[Item, Measurement]


def records(results: Results) -> list[dict[str, Any]]:
    """Rows of the JSON record."""
    return [
        {"product": item.product, "rows": item.rows, "kernel": item.kernel}
        | asdict(found)
        | {"macros": item.form.macros if item.form else None}
        for item, found in results.items()
    ]


def lines(results: Results) -> list[dict[str, str]]:
    groups = dict.fromkeys((item.product, item.rows) for item in results)
    return [line(product, rows, of_group(results, product, rows)) for product, rows in groups]


def of_group(results: Results, product: str, rows: int) -> dict[str, Measurement]:
    return {item.kernel: found for item, found in results.items() if (item.product, item.rows) == (product, rows)}


def line(product: str, rows: int, found: Mapping[str, Measurement]) -> dict[str, str]:
    candidates = sorted((name for name in found if name not in REFERENCES), key=lambda name: found[name].us or 1e9)
    best = next((name for name in candidates if found[name].is_usable), None)
    return {
        "product": product,
        "rows": str(rows),
        **{f"{name}, us": cell(found[name]) for name in REFERENCES},
        "best tile": best or "none",
        "us": cell(found[best]) if best else "",
        "of served": share(found[best], found["served"]) if best else "",
        "other tiles, us": ", ".join(f"{name} {cell(found[name])}" for name in candidates if name != best),
    }


def cell(found: Measurement) -> str:
    """Microseconds, with ! if the values are wrong and ~ if two runs differ."""
    if found.us is None:
        return "-"
    return f"{found.us:.2f}" + "!" * (not found.is_correct) + "~" * (not found.same_bits)


def share(found: Measurement, served: Measurement) -> str:
    return f"{found.us / served.us:.0%}" if found.us and served.us else ""


def problems(results: Results) -> Iterator[str]:
    for item, found in results.items():
        if not found.is_usable:
            yield f"{item.product} {item.rows} {item.kernel}: {problem(found)}"


def problem(found: Measurement) -> str:
    if found.failure:
        return found.failure
    if not found.is_correct:
        error = found.relative_error
        return "outputs are not finite" if error is None else f"relative error {error:.1e}"
    return "two runs differ"
