"""The rows that a talker owns: keys, claims, and which voice has which row."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from qwen3_tts_engine.codec import rows
from qwen3_tts_engine.codec.contract import MAX_BATCH, NUM_ROWS, PUBLIC_ROWS, RowCounts
from qwen3_tts_engine.codec.rows import LAST_OWNED, Claim, VoiceRows, claim_rows, owner_key
from qwen3_tts_engine.request import RequestError
from qwen3_tts_engine.voice import Voice


def test_an_owner_has_one_key_and_others_have_other_keys() -> None:
    owners = [f"qwen3_tts_0_{i} of 4711" for i in range(100)]
    keys = [owner_key(owner) for owner in owners]
    assert keys == [owner_key(owner) for owner in owners]
    assert len(set(keys)) == len(keys)
    assert all(0 < key < 1 << 31 for key in keys)


def test_a_key_changes_when_the_machine_boots(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nobody can guess it without that number; where there is none, it depends on the owner alone."""
    keys = set()
    for boot in ("first", "second"):
        (tmp_path / boot).write_text(boot)
        monkeypatch.setattr(rows, "BOOT_ID", tmp_path / boot)
        keys.add(owner_key("talker"))
    monkeypatch.setattr(rows, "BOOT_ID", tmp_path / "none")
    keys.add(owner_key("talker"))
    assert len(keys) == 3
    assert owner_key("talker") in keys


def test_no_owner_has_the_key_of_callers_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    no_digest = SimpleNamespace(digest=lambda: bytes(32))
    monkeypatch.setattr(rows, "hashlib", SimpleNamespace(sha256=lambda content: no_digest))
    assert owner_key("talker") == 1


def claim_around(others: set[int], asked: list[int]) -> Claim:
    """Claims rows that are not others'; `asked` takes what was asked for."""

    def claim(numbers: np.ndarray) -> np.ndarray:
        assert 0 < len(numbers) <= MAX_BATCH
        asked.extend(numbers.tolist())
        return np.array([row not in others for row in numbers.tolist()])

    return claim


@pytest.mark.parametrize("others", [set(), {1}, {2, 3, 70}, set(range(1, 200)), set(range(1, 400, 2))], ids=len)
@pytest.mark.parametrize("count", [1, MAX_BATCH, 300])
def test_claims_the_first_rows_that_others_do_not_own(count: int, others: set[int]) -> None:
    asked: list[int] = []
    found = claim_rows(count, claim_around(others, asked))
    free = [row for row in range(1, NUM_ROWS) if row not in others]
    assert found.tolist() == free[:count]
    assert asked == list(range(1, free[count - 1] + 1)), "claims no row that it does not need"


def test_all_rows_but_the_zero_row_and_the_public_ones_can_be_claimed() -> None:
    asked: list[int] = []
    found = claim_rows(LAST_OWNED, claim_around(set(), asked))
    assert found.tolist() == list(range(1, NUM_ROWS - PUBLIC_ROWS))


def test_too_few_rows_are_an_error() -> None:
    others = set(range(NUM_ROWS)) - {5, 900, LAST_OWNED}
    asked: list[int] = []
    assert claim_rows(3, claim_around(others, asked)).tolist() == [5, 900, LAST_OWNED]
    with pytest.raises(RequestError, match="code2wav has 3 of 4 rows left: other models or callers own the rest"):
        claim_rows(4, claim_around(others, asked))
    assert max(asked) == LAST_OWNED


STATE_BYTES = 2_596_992  # of the released codec in FP16


@pytest.mark.parametrize(
    ("slots", "mib", "voices"),
    [
        (64, 0, 0),
        (64, 512, 206),
        (1024, 512, 206),
        # At least one for each voice of a call, and one more.
        (1, 1, 2),
        (12, 1, 13),
        (64, 1, 65),
        (256, 1, 65),
    ],
)
def test_voices_have_the_rows_that_their_memory_holds(slots: int, mib: int, voices: int) -> None:
    counts = RowCounts.of(slots, mib << 20, STATE_BYTES)
    assert counts == RowCounts(slots, voices)
    assert counts.total == slots + voices


@pytest.mark.parametrize(("mib", "state_bytes"), [(16 << 10, STATE_BYTES), (512, 100_000)])
def test_a_talker_never_wants_more_rows_than_there_are(mib: int, state_bytes: int) -> None:
    """Much memory for voices, or the small states of a small codec."""
    assert RowCounts.of(64, mib << 20, state_bytes).total <= LAST_OWNED


class Decoder:
    """Records which voice was decoded into which row. Those in `broken` fail."""

    def __init__(self) -> None:
        self.decoded: list[tuple[Voice, int]] = []
        self.broken: dict[Voice, Exception] = {}

    def __call__(self, voice: Voice, row: int) -> None:
        self.decoded.append((voice, row))
        if voice in self.broken:
            raise self.broken[voice]


def voices_of(count: int) -> list[Voice]:
    return [Voice(np.zeros(4, np.float32), np.zeros((20, 16), np.int32), "text") for _ in range(count)]


def row_of(voices: VoiceRows, voice: Voice) -> int:
    with voices.holding([voice]) as held:
        row = held[voice]
    assert isinstance(row, int)
    return row


def test_a_voice_is_decoded_once_into_a_row_of_its_own() -> None:
    decoder = Decoder()
    voices, (a, b) = VoiceRows([5, 6, 7], decoder), voices_of(2)
    with voices.holding([a, b, a]) as held:
        assert held.keys() == {a, b}
        rows_held = [held[a], held[b]]
    assert set(decoder.decoded) == set(zip((a, b), rows_held, strict=True))
    assert [row_of(voices, a), row_of(voices, b)] == rows_held
    assert len(decoder.decoded) == 2
    assert set(rows_held) < {5, 6, 7}


def test_the_voice_used_least_recently_gives_up_its_row() -> None:
    decoder = Decoder()
    voices, (a, b, c) = VoiceRows([5, 6], decoder), voices_of(3)
    rows_of = {voice: row_of(voices, voice) for voice in (a, b)}
    row_of(voices, a)
    assert row_of(voices, c) == rows_of[b]
    assert row_of(voices, a) == rows_of[a]
    assert [voice for voice, _ in decoder.decoded] == [a, b, c]
    assert row_of(voices, b) == rows_of[b], "c was used before a"
    assert [voice for voice, _ in decoder.decoded] == [a, b, c, b]


def test_a_voice_in_use_keeps_its_row() -> None:
    decoder = Decoder()
    voices, (a, *others) = VoiceRows([5, 6], decoder), voices_of(4)
    with voices.holding([a]) as held, voices.holding([a]):
        found = {row_of(voices, voice) for voice in others}
    assert found == {5, 6} - {held[a]}
    assert row_of(voices, a) == held[a]
    # Its users are gone.
    assert {row_of(voices, voice) for voice in others} == {5, 6}


def test_a_voice_is_free_again_after_a_failed_call() -> None:
    voices, (a, b) = VoiceRows([5], Decoder()), voices_of(2)

    def call() -> None:
        with voices.holding([a]):
            raise RequestError("the call failed")

    with pytest.raises(RequestError, match="the call failed"):
        call()
    assert row_of(voices, b) == 5


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (RequestError("the codec gave no finite audio"), "the codec gave no finite audio"),
        (ValueError("a bug"), "decoding a voice failed: a bug"),
    ],
    ids=["expected", "unexpected"],
)
def test_a_failure_is_the_voices_own_and_frees_its_row(error: Exception, message: str) -> None:
    decoder = Decoder()
    voices, (broken, good, next_one) = VoiceRows([5, 6], decoder), voices_of(3)
    decoder.broken[broken] = error
    for _ in range(3):
        with voices.holding([broken, good]) as held:
            assert isinstance(held[broken], RequestError)
            assert str(held[broken]) == message
            assert isinstance(held[good], int)
    assert [voice for voice, _ in decoder.decoded].count(broken) == 3, "each call tries again"
    with voices.holding([good, next_one]) as held:
        assert {held[good], held[next_one]} == {5, 6}
    decoder.broken.clear()
    assert row_of(voices, broken) in (5, 6)


class SlowDecoder(Decoder):
    """Decodes as soon as `released` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.began, self.released = threading.Event(), threading.Event()

    def __call__(self, voice: Voice, row: int) -> None:
        self.began.set()
        self.released.wait()
        super().__call__(voice, row)


class Users:
    """Threads that each hold a voice once, and what they found."""

    def __init__(self, voices: VoiceRows) -> None:
        self._voices, self._threads = voices, list[threading.Thread]()
        self.found: list[int | RequestError] = []

    def add(self, voice: Voice) -> None:
        """Returns when the thread is about to hold the voice."""
        arrived = threading.Event()

        def use() -> None:
            arrived.set()
            with self._voices.holding([voice]) as held:
                self.found.append(held[voice])

        self._threads.append(threading.Thread(target=use))
        self._threads[-1].start()
        arrived.wait()

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


def while_decoding(decoder: SlowDecoder, use: Callable[[VoiceRows, Users, Voice], None]) -> list[int | RequestError]:
    """What five users found of a voice that the first of them decodes; `use` happens before that ends."""
    [voice] = voices_of(1)
    voices = VoiceRows([5, 6], decoder)
    users = Users(voices)
    users.add(voice)
    decoder.began.wait()
    for _ in range(4):
        users.add(voice)
    use(voices, users, voice)
    decoder.released.set()
    users.join()
    return users.found


def test_concurrent_users_of_a_voice_share_one_decode() -> None:
    def wait(voices: VoiceRows, users: Users, voice: Voice) -> None:
        assert not users.found, "the row is not ready yet"

    decoder = SlowDecoder()
    found = while_decoding(decoder, wait)
    assert found == [decoder.decoded[0][1]] * 5
    assert len(decoder.decoded) == 1


def test_a_failed_decode_fails_all_its_users_and_the_next_one_tries_again() -> None:
    def fail(voices: VoiceRows, users: Users, voice: Voice) -> None:
        decoder.broken[voice] = RequestError("the codec gave no finite audio")

    decoder = SlowDecoder()
    found = while_decoding(decoder, fail)
    assert len(found) == 5
    assert {str(error) for error in found} == {"the codec gave no finite audio"}
    assert 1 <= len(decoder.decoded) <= 5, "a user that came too late to share the failure tries again"


def test_other_voices_do_not_wait_for_a_decode() -> None:
    """The first voice's decode lasts until the second voice has been used."""
    first, second = voices_of(2)
    began, released = threading.Event(), threading.Event()

    def decode(voice: Voice, row: int) -> None:
        if voice is first:
            began.set()
            released.wait()

    voices = VoiceRows([5, 6], decode)
    users = Users(voices)
    users.add(first)
    began.wait()
    assert row_of(voices, second) in (5, 6)
    assert not users.found
    released.set()
    users.join()
    assert set(users.found) | {row_of(voices, second)} == {5, 6}
