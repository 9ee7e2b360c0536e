"""The kernel that opens the rows of a call against code2wav_step.rows; without a GPU in Triton's interpreter."""

import numpy as np
import pytest
import torch

from code2wav_step.config import Contract
from code2wav_step.rows import ZERO_ROW, HostRows
from qwen3_tts_engine.codec.contract import NUM_ROWS, PUBLIC_ROWS, terms

pytest.importorskip("triton", reason="Triton is not installed")

from code2wav_step.kernels import places as places_kernel

KEY, OTHER_KEY, NO_KEY = 5, 6, 0
LAST_OWNED = NUM_ROWS - PUBLIC_ROWS - 1
PUBLIC = range(LAST_OWNED + 1, NUM_ROWS)
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
# A row without memory on the device.
MISSING = 40


class DeviceRows:
    """The tables of a plan, and the kernel that opens rows there."""

    def __init__(self) -> None:
        self.keys = torch.zeros(NUM_ROWS, dtype=torch.int32, device=DEVICE)
        self.addresses = torch.arange(1, NUM_ROWS + 2, device=DEVICE)
        self.addresses[MISSING] = 0

    def open(self, given: np.ndarray) -> tuple[list[int], list[int], list[int], list[bool]]:
        """Addresses of the states and of the next ones, histories, and marks of denied entries."""
        count = len(given)
        states, next_states = torch.zeros(2, count, dtype=torch.int64, device=DEVICE)
        history, denied = torch.full((2, count), -1, dtype=torch.int32, device=DEVICE)
        tables = (self.addresses, self.keys, states, next_states, history, denied)
        sizes = {"NUM_ROWS": NUM_ROWS, "NUM_OWNED": NUM_ROWS - PUBLIC_ROWS}
        places_kernel.open_kernel[(count,)](torch.from_numpy(given).to(DEVICE), *tables, 71, **sizes)
        return states.tolist(), next_states.tolist(), history.tolist(), denied.bool().tolist()


def test_the_device_opens_what_the_host_does() -> None:
    """Calls of entries with rows of their own: within a call the order of entries that share one is open."""
    random = np.random.default_rng(0)
    rows = HostRows(24, Contract(**terms()))  # type: ignore[arg-type]
    device = DeviceRows()
    used = np.array([*range(9), 100, LAST_OWNED, *PUBLIC[:3], PUBLIC[-1]])
    outcomes = set()
    for _ in range(120):
        first, second = random.permutation(used)[:14].reshape(2, 7)
        before = np.choose(random.integers(0, 3, 7), [first, second, np.zeros(7, np.int64)])
        history, key = (
            random.choice([0, 0, 5, 71], 7),
            random.choice([KEY, OTHER_KEY, NO_KEY, -1], 7, p=[0.4, 0.3, 0.2, 0.1]),
        )
        given = np.stack([before, second, history, key], axis=1).astype(np.int32)
        expected, (states, next_states, found_history, found_denied) = rows.open(given), device.open(given)
        assert found_denied == expected.denied.tolist()
        assert found_history == history.tolist()
        writes = expected.after != NUM_ROWS
        assert next_states == [row + 1 for row in expected.after]
        assert states == [row + 1 for row in np.where(writes, before, ZERO_ROW)]
        assert device.keys.tolist() == rows._owners.clip(0).tolist()
        outcomes |= set(zip(found_denied, (before == second).tolist(), (key == 0).tolist(), strict=True))
    assert len(outcomes) == 8, "denied and opened, claims or the same row, with and without a key"
    assert device.open(np.array([[MISSING, MISSING, 0, KEY], [0, MISSING, 0, KEY]], np.int32))[3] == [True, True]


@pytest.mark.parametrize("place", [(-1, 1, 0, KEY), (0, NUM_ROWS, 0, KEY), (NUM_ROWS, 1, 0, KEY), (0, -5, 2, 0)])
def test_the_device_denies_rows_that_do_not_exist(place: tuple[int, int, int, int]) -> None:
    device = DeviceRows()
    assert device.open(np.array([place], np.int32)) == ([1], [NUM_ROWS + 1], [place[2]], [True])
    assert not device.keys.any()


def test_the_device_limits_histories_to_the_window() -> None:
    given = np.array([[0, 1, 500, KEY], [0, 2, -3, KEY]], np.int32)
    assert DeviceRows().open(given)[2] == [71, 0]


def test_the_device_grants_a_row_to_one_of_two_claims() -> None:
    device = DeviceRows()
    lost = device.open(np.array([[1, 1, 0, KEY], [1, 1, 0, OTHER_KEY]], np.int32))[3]
    assert sum(lost) == 1
    assert device.open(np.array([[1, 1, 1, KEY], [1, 1, 1, OTHER_KEY]], np.int32))[3] == lost
