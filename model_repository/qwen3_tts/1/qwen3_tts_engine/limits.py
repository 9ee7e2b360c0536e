"""How much a runner can hold."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunnerLimits:
    num_slots: int
    num_pages: int
    page_size: int
    max_positions: int
    """Positions of the longest stream: prompt and frames."""
    max_trailing: int
    """Text tokens of the longest stream that are fed one a frame."""

    @property
    def max_pages(self) -> int:
        return -(-self.max_positions // self.page_size)
