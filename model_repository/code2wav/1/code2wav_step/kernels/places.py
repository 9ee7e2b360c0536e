"""Opens the rows of a call on the device, as rows.Rows does on the host."""

import triton
import triton.language as tl


@triton.jit
def open_kernel(
    places, addresses, keys, states, next_states, history, denied, window,
    NUM_ROWS: tl.constexpr, NUM_OWNED: tl.constexpr,
):  # fmt: skip
    """One program per entry of `places` [batch, 4].

    `addresses` [NUM_ROWS + 1] are those of the rows, 0 for one without memory, and of the state that takes writes to no
    row; `keys` [NUM_ROWS] are their owners', 0 for none. Writes [batch] of the entries' addresses, histories and marks.
    """
    entry = tl.program_id(0)
    place = places + entry * 4
    before, after, past, key = tl.load(place), tl.load(place + 1), tl.load(place + 2), tl.load(place + 3)
    exists = (before >= 0) & (before < NUM_ROWS) & (after > 0) & (after < NUM_ROWS)
    before, after = tl.where(exists, before, 0), tl.where(exists, after, 0)
    is_claim = (before == after) & (past == 0)
    is_keyless = key == 0
    reads = (before == 0) | is_claim
    reads |= tl.where(is_keyless, before >= NUM_OWNED, tl.load(keys + before) == key)
    may_own = exists & reads & (key > 0) & (after < NUM_OWNED) & (tl.load(addresses + after) != 0)
    # No key equals -1, so that a row that may not be owned stays as it is.
    owner = tl.atomic_cas(keys + after, tl.where(may_own, 0, -1), key)
    owns = (owner == key) | (may_own & (owner == 0))
    opens = exists & reads & tl.where(is_keyless, after >= NUM_OWNED, owns)
    opens &= tl.load(addresses + after) != 0
    writes = opens & (is_claim == 0)
    tl.store(states + entry, tl.load(addresses + tl.where(writes, before, 0)))
    tl.store(next_states + entry, tl.load(addresses + tl.where(writes, after, NUM_ROWS)))
    tl.store(history + entry, tl.minimum(tl.maximum(past, 0), window))
    tl.store(denied + entry, tl.where(opens, 0, 1))
