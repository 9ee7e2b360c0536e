"""Both forms of the registry: round trips, limits and origins, several servers and processes at once."""

import io
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from qwen3_tts_engine.request import InvalidRequest, RequestError, Unavailable
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices import postgres_store, sqlite_store
from qwen3_tts_engine.voices.store import VoiceStore
from tests.subprocesses import same_imports
from tests.unit.voices.conftest import ORIGIN, OpenStore, make_voice

ADD_TEN = """
import sys
import numpy as np
import pytest
from qwen3_tts_engine.request import InvalidRequest
from qwen3_tts_engine.voice import Voice
from tests.unit.voices.conftest import ORIGIN, be_patient, store_at
be_patient(pytest.MonkeyPatch())
store = store_at(sys.argv[1], 100, 1 << 20)
won = 0
for i in range(10):
    try:
        store.add(f"voice {i}", Voice(np.zeros(4, np.float32)), 1.0, ORIGIN)
        won += 1
    except InvalidRequest:
        pass
print(won)
"""


def test_a_voice_round_trips(open_store: OpenStore) -> None:
    voice = make_voice()
    added = open_store().add("anna", voice, 3.5, ORIGIN)
    again = open_store()
    record = again.get("anna")
    assert record == added
    assert (record.hidden_size, record.ref_text, record.reference_seconds) == (64, "text 0", 3.5)
    assert_same(again.load(record), voice)


def test_a_file_of_an_earlier_release_which_also_has_a_codec_state_loads(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (sqlite_store, postgres_store):
        monkeypatch.setattr(module, "pack", pack_with_state)
    voices = {"anna": make_voice(), "bert": make_voice(1).alone()}
    for name, voice in voices.items():
        open_store().add(name, voice, 1.0, ORIGIN)
    again = open_store()
    for name, voice in voices.items():
        assert_same(again.load(again.get(name)), voice)


def pack_with_state(voice: Voice) -> bytes:
    file, arrays = io.BytesIO(), {"x_vector": voice.x_vector}
    if voice.codes is not None:
        arrays |= {"codes": voice.codes, "state": np.ones(100, np.float16)}
    np.savez(file, **arrays)
    return file.getvalue()


def assert_same(loaded: Voice, voice: Voice) -> None:
    np.testing.assert_array_equal(loaded.x_vector, voice.x_vector)
    if voice.codes is None:
        assert loaded.codes is None
    else:
        assert loaded.codes is not None
        np.testing.assert_array_equal(loaded.codes, voice.codes)
    assert loaded.text == voice.text


def test_an_x_vector_round_trips_without_codes_and_text(store: VoiceStore) -> None:
    loaded = store.load(store.add("anna", make_voice().alone(), 1.0, ORIGIN))
    assert (loaded.codes, loaded.text) == (None, None)


def test_voices_are_listed_by_name_in_the_order_of_their_code_points(store: VoiceStore) -> None:
    for name in ("bert", "anna", "Zoe", "a b", "émile", "_x", "2"):
        store.add(name, make_voice().alone(), 1.0, ORIGIN)
    assert [record.name for record in store.list()] == ["2", "Zoe", "_x", "a b", "anna", "bert", "émile"]


def test_a_name_is_in_use_until_it_is_deleted(store: VoiceStore) -> None:
    first = store.add("anna", make_voice(1), 1.0, ORIGIN)
    with pytest.raises(InvalidRequest, match="voice: 'anna': already registered"):
        store.add("anna", make_voice(2), 1.0, ORIGIN)
    with pytest.raises(InvalidRequest, match="voice: 'anna': already registered"):
        store.check_free("anna")
    assert store.delete("anna") == first
    assert store.list() == []
    second = store.add("anna", make_voice(2), 1.0, ORIGIN)
    assert second.id != first.id
    assert second.file != first.file, "a cache would confuse the new voice with the old one"
    for name in ("bert", "Anna", "anna ", "anna\0"):
        with pytest.raises(InvalidRequest, match="no voice is registered"):
            store.get(name)
        with pytest.raises(InvalidRequest):
            store.delete(name)


def test_a_server_sees_at_once_what_another_changes(open_store: OpenStore) -> None:
    here, there = open_store(), open_store()
    first = there.add("anna", make_voice(1), 1.0, ORIGIN)
    assert here.get("anna") == first
    there.delete("anna")
    with pytest.raises(InvalidRequest, match="no voice is registered"):
        here.get("anna")
    with pytest.raises(RequestError, match="'anna'"):
        here.load(first)
    second = there.add("anna", make_voice(2), 1.0, ORIGIN)
    assert here.get("anna") == second
    assert here.load(second).text == "text 2"


def test_concurrent_adds_of_one_name_succeed_once(open_store: OpenStore) -> None:
    stores = [open_store() for _ in range(4)]

    def add(index: int) -> bool:
        try:
            stores[index % 4].add("race", make_voice(index), 1.0, ORIGIN)
        except InvalidRequest:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        won = list(pool.map(add, range(32)))
    assert sum(won) == 1
    [record] = stores[0].list()
    assert stores[1].load(record).text == f"text {won.index(True)}"


def test_concurrent_adds_of_several_servers_stay_within_the_limit(open_store: OpenStore) -> None:
    stores = [open_store(max_voices=5) for _ in range(4)]

    def add(index: int) -> bool:
        try:
            stores[index % 4].add(f"voice {index}", make_voice(index), 1.0, ORIGIN)
        except Unavailable:
            return False
        return True

    with ThreadPoolExecutor(16) as pool:
        assert sum(pool.map(add, range(20))) == 5
    assert len(stores[0].list()) == 5


def test_processes_that_start_at_once_share_a_registry(location: str, open_store: OpenStore) -> None:
    """None of them finds a table."""
    command = [sys.executable, "-c", ADD_TEN, location]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=same_imports()) for _ in range(3)]
    assert sum(int(process.communicate(timeout=120)[0]) for process in processes) == 10
    assert len(open_store().list()) == 10


def test_limits_the_number_and_size_of_voices(open_store: OpenStore) -> None:
    few = open_store(max_voices=2)
    sizes = [few.add(name, make_voice(), 1.0, ORIGIN).num_bytes for name in "ab"]
    with pytest.raises(Unavailable, match="2 voices are registered, max_voices allows no more"):
        few.add("c", make_voice(), 1.0, ORIGIN)
    small = open_store(max_bytes=sum(sizes))
    with pytest.raises(Unavailable, match="voices_mib allows no more"):
        small.add("c", make_voice(), 1.0, ORIGIN)
    small.delete("a")
    small.add("c", make_voice(), 1.0, ORIGIN)


def test_a_voice_is_refused_by_models_of_another_origin(store: VoiceStore) -> None:
    record = store.add("anna", make_voice(), 1.0, ORIGIN)
    record.check_origin(ORIGIN)
    with pytest.raises(
        InvalidRequest, match="voice: 'anna': made for a talker of hidden size 64, this model's has 2048"
    ):
        record.check_origin(replace(ORIGIN, hidden_size=2048))
    with pytest.raises(InvalidRequest, match="voice: 'anna': made with another speaker encoder"):
        record.check_origin(replace(ORIGIN, speaker_digest="other"))
    with pytest.raises(InvalidRequest, match="voice: 'anna': made with another codec"):
        record.check_origin(replace(ORIGIN, codec_digest="other"))


def test_size_of_a_large_voice_is_that_of_its_arrays(store: VoiceStore) -> None:
    voice = make_voice(frames=1 << 14)
    assert voice.codes is not None
    record = store.add("anna", voice, 30.0, ORIGIN)
    assert 0 < record.num_bytes - voice.x_vector.nbytes - voice.codes.nbytes < 2000
    assert_same(store.load(record), voice)
