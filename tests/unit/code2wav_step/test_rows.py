"""The codec's rows on the CPU: who may read and write which, and where they are in memory."""

import ctypes
from typing import Any

import numpy as np
import pytest
import torch

from code2wav_step.config import Contract
from code2wav_step.device_rows import DeviceRows
from code2wav_step.rows import BLOCK, ZERO_ROW, HostRows, Places, Rows
from qwen3_tts_engine.codec.contract import NUM_ROWS, PUBLIC_ROWS, terms
from qwen3_tts_engine.talker.memory_plan import CODEC_BLOCK_ROWS

CPU = torch.device("cpu")
CONTRACT = Contract(**terms())  # type: ignore[arg-type]
STATE_SIZE = 24
KEY, OTHER_KEY, NO_KEY = 5, 6, 0
LAST_OWNED = NUM_ROWS - PUBLIC_ROWS - 1
PUBLIC = range(LAST_OWNED + 1, NUM_ROWS)


@pytest.fixture(params=["host", "device"])
def rows(request: pytest.FixtureRequest) -> Rows[Any]:
    if request.param == "host":
        return HostRows(STATE_SIZE, CONTRACT)
    return DeviceRows(STATE_SIZE, torch.float32, CPU, CONTRACT)


def gather(rows: Rows[Any], places: Places) -> np.ndarray:
    return np.asarray(rows.gather(places))


def scatter(rows: Rows[Any], places: Places, states: np.ndarray) -> None:
    rows.scatter(places, states if isinstance(rows, HostRows) else torch.from_numpy(states))


def opened(rows: Rows[Any], *places: tuple[int, int, int, int]) -> Places:
    return rows.open(np.array(places, np.int32))


def denied(rows: Rows[Any], *places: tuple[int, int, int, int]) -> list[bool]:
    found: list[bool] = opened(rows, *places).denied.tolist()
    return found


def write(rows: Rows[Any], row: int, value: float, key: int = KEY) -> None:
    places = opened(rows, (ZERO_ROW, row, 0, key))
    assert not places.denied.any()
    scatter(rows, places, np.full((1, STATE_SIZE), value, np.float32))


def read(rows: Rows[Any], row: int, key: int = KEY) -> float:
    """The value of a row of equal values."""
    places = opened(rows, (row, row, 1, key))
    assert not places.denied.any()
    [state] = gather(rows, places)
    assert (state == state[0]).all()
    return float(state[0])


def blocks(rows: Rows[Any]) -> int:
    return len(rows._blocks)


def at(address: int) -> np.ndarray:
    """The state in memory."""
    assert address, "no memory"
    return np.ctypeslib.as_array((ctypes.c_float * STATE_SIZE).from_address(address))


def test_the_talker_plans_memory_for_blocks_of_the_same_size() -> None:
    assert CODEC_BLOCK_ROWS == BLOCK
    assert NUM_ROWS % BLOCK == 0, "the row behind the last one has a block of its own"


def test_the_zero_row_starts_a_stream_of_any_key_and_is_never_written(rows: Rows[Any]) -> None:
    first_chunks = ((ZERO_ROW, 1, 0, KEY), (ZERO_ROW, 2, 0, OTHER_KEY), (ZERO_ROW, PUBLIC[0], 0, NO_KEY))
    assert denied(rows, *first_chunks) == [False] * 3
    writes = [(row, ZERO_ROW, history, key) for _, row, _, key in first_chunks for history in (0, 1)]
    places = opened(rows, *writes, *((ZERO_ROW, ZERO_ROW, 0, key) for key in (KEY, NO_KEY)))
    assert places.denied.all()
    scatter(rows, places, np.ones((len(places.denied), STATE_SIZE), np.float32))
    assert not gather(rows, opened(rows, (ZERO_ROW, 1, 0, KEY))).any()


def test_a_row_keeps_what_its_owner_wrote(rows: Rows[Any]) -> None:
    for row in (1, 2, LAST_OWNED):
        write(rows, row, float(row))
    assert [read(rows, row) for row in (1, 2, LAST_OWNED)] == [1.0, 2.0, LAST_OWNED]
    write(rows, 2, 7.0)
    assert [read(rows, row) for row in (1, 2, LAST_OWNED)] == [1.0, 7.0, LAST_OWNED]


def test_the_history_of_each_entry_is_passed_on(rows: Rows[Any]) -> None:
    history = opened(rows, (0, 1, 0, KEY), (1, 2, 71, KEY), (3, 4, 9, OTHER_KEY)).history
    assert (history.tolist(), history.dtype) == ([0, 71, 9], np.int32)


def test_a_claim_owns_a_row_without_writing_it(rows: Rows[Any]) -> None:
    assert denied(rows, (1, 1, 0, KEY), (2, 2, 0, OTHER_KEY)) == [False, False]
    assert denied(rows, (1, 1, 0, OTHER_KEY), (2, 2, 0, KEY)) == [True, True]
    write(rows, 1, 4.0)
    again = opened(rows, (1, 1, 0, KEY))
    assert not again.denied.any()
    scatter(rows, again, np.ones((1, STATE_SIZE), np.float32))
    assert read(rows, 1) == 4.0


def test_a_claim_may_be_repeated(rows: Rows[Any]) -> None:
    claims = [(row, row, 0, KEY) for row in range(1, 40)]
    for _ in range(2):
        assert not any(denied(rows, *claims))


def test_the_first_writer_of_a_row_owns_it(rows: Rows[Any]) -> None:
    assert denied(rows, (ZERO_ROW, 1, 0, KEY)) == [False]
    for before, history in ((ZERO_ROW, 0), (1, 0), (1, 5)):
        assert denied(rows, (before, 1, history, OTHER_KEY), (before, 1, history, NO_KEY)) == [True, True]
        assert denied(rows, (before, 1, history, KEY)) == [False]


def test_a_stream_whose_row_has_no_owner_any_more_is_denied(rows: Rows[Any]) -> None:
    """Its state went with a codec that was loaded again; another stream may begin in the row."""
    assert denied(rows, (1, 1, 5, KEY), (1, 2, 5, KEY)) == [True, True]
    assert denied(rows, (ZERO_ROW, 1, 0, KEY)) == [False]
    assert denied(rows, (1, 1, 2, KEY)) == [False]


def test_nobody_reads_the_row_of_another_owner(rows: Rows[Any]) -> None:
    write(rows, 1, 4.0)
    write(rows, 2, 3.0, OTHER_KEY)
    places = opened(rows, (1, 2, 5, OTHER_KEY), (1, PUBLIC[0], 5, NO_KEY), (1, 3, 5, OTHER_KEY))
    assert places.denied.all()
    assert not gather(rows, places).any()
    scatter(rows, places, np.ones((3, STATE_SIZE), np.float32))
    assert (read(rows, 1), read(rows, 2, OTHER_KEY)) == (4.0, 3.0)


def test_a_denied_entry_owns_nothing(rows: Rows[Any]) -> None:
    """It reads the row of another owner, and would write one without an owner."""
    write(rows, 1, 4.0)
    assert denied(rows, (1, 2, 5, OTHER_KEY)) == [True]
    assert denied(rows, (2, 2, 0, KEY)) == [False]


def test_denied_entries_write_nowhere_and_others_of_the_call_are_served(rows: Rows[Any]) -> None:
    for row in range(1, 9):
        write(rows, row, float(row), OTHER_KEY if row == 3 else KEY)
    places = opened(rows, (1, 1, 9, KEY), (3, 3, 9, KEY), (ZERO_ROW, ZERO_ROW, 0, KEY), (2, 5, 9, KEY))
    assert places.denied.tolist() == [False, True, True, False]
    scatter(rows, places, gather(rows, places) + 10)
    found = [read(rows, row, OTHER_KEY if row == 3 else KEY) for row in range(1, 9)]
    assert found == [11.0, 2.0, 3.0, 4.0, 12.0, 6.0, 7.0, 8.0]
    assert not gather(rows, opened(rows, (ZERO_ROW, 1, 0, KEY))).any()


def test_public_rows_are_for_callers_without_a_key_and_never_owned(rows: Rows[Any]) -> None:
    for row in (PUBLIC[0], PUBLIC[-1]):
        for before in (row, ZERO_ROW):
            assert denied(rows, (before, row, 0, KEY), (before, row, 0, NO_KEY)) == [True, False]
        write(rows, row, 2.0, NO_KEY)
        assert read(rows, row, NO_KEY) == 2.0
        assert denied(rows, (row, 1, 5, KEY)) == [True], "with a key nobody reads it either"
    assert denied(rows, (LAST_OWNED, LAST_OWNED, 0, KEY)) == [False]
    assert denied(rows, (ZERO_ROW, LAST_OWNED, 0, NO_KEY)) == [True]


def test_a_negative_key_opens_nothing(rows: Rows[Any]) -> None:
    assert denied(rows, (1, 1, 0, -1), (ZERO_ROW, 2, 0, -1), (ZERO_ROW, PUBLIC[0], 0, -1)) == [True] * 3
    assert denied(rows, (1, 1, 0, KEY), (2, 2, 0, KEY)) == [False, False]


def test_a_caller_without_a_key_owns_nothing(rows: Rows[Any]) -> None:
    opened(rows, (ZERO_ROW, 1, 0, NO_KEY))
    assert denied(rows, (1, 1, 0, KEY)) == [False]
    assert denied(rows, (ZERO_ROW, 1, 0, NO_KEY)) == [True]


def test_of_two_claims_in_a_call_one_succeeds(rows: Rows[Any]) -> None:
    keys = (KEY, OTHER_KEY)
    lost = denied(rows, *((1, 1, 0, key) for key in keys))
    assert sum(lost) == 1
    assert denied(rows, *((1, 1, 1, key) for key in keys)) == lost


def test_two_entries_of_one_key_may_write_the_same_row(rows: Rows[Any]) -> None:
    """One of their states is kept; the loss is their own."""
    places = opened(rows, (ZERO_ROW, 1, 0, KEY), (ZERO_ROW, 1, 0, KEY))
    assert not places.denied.any()
    scatter(rows, places, np.repeat(np.array([[1], [2]], np.float32), STATE_SIZE, axis=1))
    assert read(rows, 1) in (1.0, 2.0)


def test_entries_of_one_key_may_read_the_same_row(rows: Rows[Any]) -> None:
    """Streams of one voice do so."""
    write(rows, 1, 4.0)
    places = opened(rows, *((1, row, 9, KEY) for row in (2, 3, 4)))
    scatter(rows, places, gather(rows, places) + np.array([[1], [2], [3]], np.float32))
    assert [read(rows, row) for row in (1, 2, 3, 4)] == [4.0, 5.0, 6.0, 7.0]


def test_blocks_are_allocated_when_a_row_of_theirs_is_used_first(rows: Rows[Any]) -> None:
    at_first = blocks(rows)
    for row in (1, BLOCK - 1):
        write(rows, row, 1.0)
    assert blocks(rows) == at_first, "those of the zero row's block"
    write(rows, BLOCK, 1.0)
    opened(rows, (BLOCK + 1, BLOCK + 1, 0, OTHER_KEY), (5 * BLOCK, 5 * BLOCK, 0, KEY))
    assert blocks(rows) == at_first + 2
    assert denied(rows, (ZERO_ROW, BLOCK, 0, OTHER_KEY), (BLOCK, 9 * BLOCK, 0, NO_KEY)) == [True, True]
    assert blocks(rows) == at_first + 2, "a denied entry takes no memory"
    write(rows, PUBLIC[0], 1.0, NO_KEY)
    assert blocks(rows) == at_first + 3


def test_a_new_row_is_zero(rows: Rows[Any]) -> None:
    for row in (1, BLOCK, LAST_OWNED):
        opened(rows, (row, row, 0, KEY))
        assert read(rows, row) == 0.0
    assert read(rows, PUBLIC[0], NO_KEY) == 0.0


# Entries of a call.
CALLS = {
    "streams that begin": [(ZERO_ROW, 1, 0, KEY), (ZERO_ROW, 2, 0, KEY), (ZERO_ROW, 5 * BLOCK, 0, KEY)],
    "streams that continue": [(3, 3, 9, KEY), (4, 7, 9, KEY), (17, 17, 9, KEY)],
    "claims": [(row, row, 0, KEY) for row in (1, 3, 17, LAST_OWNED)],
    "denied": [(30, 30, 9, KEY), (ZERO_ROW, 30, 0, KEY), (30, 1, 0, KEY), (ZERO_ROW, ZERO_ROW, 0, KEY), (3, 3, 9, 0)],
    "public": [(ZERO_ROW, PUBLIC[0], 0, NO_KEY), (PUBLIC[1], PUBLIC[1], 9, NO_KEY)],
    "never written, read": [(PUBLIC[-1], PUBLIC[0], 9, NO_KEY), (9 * BLOCK, PUBLIC[1], 9, NO_KEY)],
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_kernels_read_and_write_at_the_addresses_what_gather_and_scatter_do(
    rows: Rows[Any], call: list[tuple[int, int, int, int]]
) -> None:
    for row in (3, 4, 17):
        write(rows, row, float(row))
    write(rows, 30, 30.0, OTHER_KEY)
    write(rows, PUBLIC[1], 5.0, NO_KEY)
    places = opened(rows, *call)
    addresses = rows.addresses(places)
    assert (addresses.shape, addresses.dtype) == ((2, len(call)), np.int64)
    read_from, written_to = addresses.tolist()
    assert (np.stack([at(address) for address in read_from]) == gather(rows, places)).all()
    written = np.repeat(np.arange(1, len(call) + 1, dtype=np.float32)[:, None], STATE_SIZE, axis=1)
    scatter(rows, places, written)
    for address, states, takes in zip(written_to, written, places.after != NUM_ROWS, strict=True):
        assert not takes or (at(address) == states).all()
    # What belongs to none has one place, which is not the zero row's.
    nowhere = {address for address, row in zip(written_to, places.after.tolist(), strict=True) if row == NUM_ROWS}
    assert len(nowhere) <= 1
    assert not at(int(rows.addresses(opened(rows, (ZERO_ROW, 1, 0, KEY)))[0, 0])).any()


def test_a_row_that_a_denied_entry_named_has_an_address(rows: Rows[Any]) -> None:
    """Whoever owns a row may read it, so that there must be memory."""
    write(rows, 1, 4.0, OTHER_KEY)
    opened(rows, (1, 5 * BLOCK, 9, KEY))
    places = opened(rows, (5 * BLOCK, 2, 9, KEY))
    assert not at(int(rows.addresses(places)[0, 0])).any()


def test_states_have_the_type_of_the_device() -> None:
    rows = DeviceRows(STATE_SIZE, torch.float16, CPU, CONTRACT)
    places = opened(rows, (ZERO_ROW, 1, 0, KEY), (ZERO_ROW, 2, 0, KEY))
    rows.scatter(places, torch.full((2, STATE_SIZE), 0.1))
    gathered = rows.gather(opened(rows, (1, 1, 1, KEY), (2, 2, 1, KEY)))
    assert gathered.dtype == torch.float16
    first, second = rows.addresses(places)[1].tolist()
    assert second - first == STATE_SIZE * 2
