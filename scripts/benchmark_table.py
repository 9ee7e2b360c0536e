"""How the benchmarks of the parts show their rows."""

from typing import Any

from rich.console import Console
from rich.table import Table


def show(rows: list[dict[str, Any]], console: Console) -> None:
    table = Table(*rows[0])
    for row in rows:
        table.add_row(*map(str, row.values()))
    console.print(table)
