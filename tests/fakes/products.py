"""Measurements of a process that can die or hang; imports nothing that takes time."""

import os
import time
from collections.abc import Callable

from scripts.benchmarks.products.candidates import Item
from scripts.benchmarks.products.table import Measurement


def measuring() -> Callable[[Item], Measurement]:
    return measure


def measure(item: Item) -> Measurement:
    if item.kernel == "die":
        os._exit(1)
    if item.kernel == "hang":
        time.sleep(60)
    return Measurement(us=1.0)
