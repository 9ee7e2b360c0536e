"""The store of registered voices: round trips, limits, origins and concurrent writers."""

import os
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from qwen3_tts_engine.request import InvalidRequest, RequestError, Unavailable
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices import store as voice_store
from qwen3_tts_engine.voices.record import Origin
from qwen3_tts_engine.voices.store import ARRAYS, DATABASE, VoiceStore
from tests.subprocesses import same_imports

ORIGIN = Origin(64, "speaker", "codec")
MIB = 1 << 20


def make_voice(seed: int = 0, frames: int = 5) -> Voice:
    random = np.random.default_rng(seed)
    codes = random.integers(0, 2048, (frames, 16), np.int32)
    return Voice(random.normal(size=64).astype(np.float32), codes, f"text {seed}", torch.randn(100))


@pytest.fixture
def store(tmp_path: Path) -> VoiceStore:
    return VoiceStore(tmp_path / "voices", max_voices=10, max_bytes=MIB)


def files(store: VoiceStore) -> list[str]:
    return sorted(path.name for path in (store._folder / ARRAYS).iterdir())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_voice_round_trips(store: VoiceStore, dtype: torch.dtype) -> None:
    voice = replace(make_voice(), state=torch.randn(100).to(dtype))
    added = store.add("anna", voice, 3.5, ORIGIN)
    store.close()
    again = VoiceStore(store._folder, 10, MIB)
    record = again.get("anna")
    assert record == added
    assert (record.hidden_size, record.ref_text, record.reference_seconds) == (64, "text 0", 3.5)
    loaded = again.load(record)
    np.testing.assert_array_equal(loaded.x_vector, voice.x_vector)
    np.testing.assert_array_equal(loaded.codes, voice.codes)
    assert loaded.text == voice.text
    assert loaded.state.dtype == dtype
    assert torch.equal(loaded.state, voice.state)


def test_an_x_vector_round_trips_without_codes_and_text(store: VoiceStore) -> None:
    loaded = store.load(store.add("anna", make_voice().alone(), 1.0, ORIGIN))
    assert (loaded.codes, loaded.text, loaded.state) == (None, None, None)


def test_a_name_is_in_use_until_it_is_deleted(store: VoiceStore) -> None:
    first = store.add("anna", make_voice(1), 1.0, ORIGIN)
    with pytest.raises(InvalidRequest, match="voice: 'anna': already registered"):
        store.add("anna", make_voice(2), 1.0, ORIGIN)
    assert files(store) == [first.file]
    store.delete("anna")
    assert (store.list(), files(store)) == ([], [])
    second = store.add("anna", make_voice(2), 1.0, ORIGIN)
    assert second.id != first.id, "a cache would confuse the new voice with the old one"
    for name in ("bert", "Anna", "anna "):
        with pytest.raises(InvalidRequest, match="no voice is registered"):
            store.get(name)
        with pytest.raises(InvalidRequest, match="no voice is registered"):
            store.delete(name)


def test_concurrent_adds_of_one_name_succeed_once(tmp_path: Path) -> None:
    stores = [VoiceStore(tmp_path, 100, 64 * MIB) for _ in range(4)]

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
    assert files(stores[0]) == [record.file], "the files of failed adds are removed"
    assert stores[1].load(record).text == f"text {won.index(True)}"


def test_processes_share_a_folder(tmp_path: Path) -> None:
    code = f"""
import numpy as np
from pathlib import Path
from qwen3_tts_engine.voice import Voice
from qwen3_tts_engine.voices.record import Origin
from qwen3_tts_engine.voices.store import VoiceStore
from qwen3_tts_engine.request import InvalidRequest
store = VoiceStore(Path({str(tmp_path)!r}), 100, 1 << 20)
won = 0
for i in range(10):
    try:
        store.add(f"voice {{i}}", Voice(np.zeros(4, np.float32)), 1.0, Origin(4, "s", "c"))
        won += 1
    except InvalidRequest:
        pass
print(won)
"""
    processes = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=same_imports())
        for _ in range(3)
    ]
    assert sum(int(process.communicate(timeout=60)[0]) for process in processes) == 10
    store = VoiceStore(tmp_path, 100, MIB)
    assert len(store.list()) == 10
    assert files(store) == sorted(record.file for record in store.list())


def test_limits_the_number_and_size_of_voices(tmp_path: Path) -> None:
    few = VoiceStore(tmp_path / "few", max_voices=2, max_bytes=MIB)
    for name in "ab":
        few.add(name, make_voice(), 1.0, ORIGIN)
    with pytest.raises(Unavailable, match="2 voices are registered, max_voices allows no more"):
        few.add("c", make_voice(), 1.0, ORIGIN)
    assert len(files(few)) == 2
    small = VoiceStore(tmp_path / "small", max_voices=100, max_bytes=3000)
    small.add("a", make_voice(), 1.0, ORIGIN)
    with pytest.raises(Unavailable, match="voices_mib allows no more"):
        small.add("b", make_voice(), 1.0, ORIGIN)
    small.delete("a")
    small.add("b", make_voice(), 1.0, ORIGIN)


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


def test_a_damaged_file_is_named_and_affects_only_its_voice(store: VoiceStore) -> None:
    damaged, missing, whole = (store.add(name, make_voice(), 1.0, ORIGIN) for name in "abc")
    path = store._folder / ARRAYS / damaged.file
    path.write_bytes(path.read_bytes()[:300])
    (store._folder / ARRAYS / missing.file).unlink()
    for record in (damaged, missing):
        with pytest.raises(RequestError, match=f"voice: '{record.name}': its file cannot be read"):
            store.load(record)
    assert store.load(whole).text == "text 0"
    store.delete("b")


def test_a_failed_write_leaves_no_files(store: VoiceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    store.list()
    monkeypatch.setattr(voice_store.np, "savez", full)
    with pytest.raises(Unavailable, match=r"voices_folder: .*No space left"):
        store.add("anna", make_voice(), 1.0, ORIGIN)
    assert (store.list(), files(store)) == ([], [])


def test_removes_old_orphaned_files_at_the_start(store: VoiceStore) -> None:
    record = store.add("anna", make_voice(), 1.0, ORIGIN)
    store.close()
    arrays = store._folder / ARRAYS
    long_ago = time.time() - 2 * voice_store.ORPHAN_SECONDS
    for name, age in (("old.partial", long_ago), ("young.npz", time.time())):
        (arrays / name).write_bytes(b"")
        os.utime(arrays / name, (age, age))
    os.utime(arrays / record.file, (long_ago, long_ago))
    assert len(store.list()) == 1
    assert files(store) == sorted([record.file, "young.npz"])


def test_reports_an_unusable_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="voices_folder: "):
        VoiceStore(tmp_path / "file" / "voices", 10, MIB).list()
    folder = tmp_path / "broken"
    folder.mkdir()
    (folder / DATABASE).write_bytes(b"this is no database" * 100)
    with pytest.raises(RequestError, match=r"voices_folder: .*not a database"):
        VoiceStore(folder, 10, MIB).list()


def test_the_table_has_a_unique_constraint_on_names(store: VoiceStore) -> None:
    store.add("anna", make_voice(), 1.0, ORIGIN)
    columns = voice_store.COLUMNS.removeprefix("id, ")
    with sqlite3.connect(store._folder / DATABASE) as other, pytest.raises(sqlite3.IntegrityError):
        other.execute(f"INSERT INTO voices ({columns}) SELECT {columns} FROM voices")


def test_reads_do_not_wait_for_a_write_of_another_process(store: VoiceStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(voice_store, "BUSY_SECONDS", 0.01)
    record = store.add("anna", make_voice(), 1.0, ORIGIN)
    with sqlite3.connect(store._folder / DATABASE, isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        assert store.get("anna") == record
        assert store.list() == [record]
        with pytest.raises(Unavailable, match=r"voices_folder: .*locked"):
            store.add("bert", make_voice(), 1.0, ORIGIN)
        with pytest.raises(Unavailable, match=r"voices_folder: .*locked"):
            store.delete("anna")
        other.execute("ROLLBACK")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(Unavailable, match=r"voices_folder: .*locked"):
            store.get("anna")
    assert files(store) == [record.file]


def test_reports_a_missing_folder_and_recovers_when_it_returns(store: VoiceStore) -> None:
    record = store.add("anna", make_voice(), 1.0, ORIGIN)
    elsewhere = store._folder.rename(store._folder.with_name("elsewhere"))
    for _ in range(2):
        with pytest.raises(Unavailable, match="the folder is gone"):
            store.get("anna")
        with pytest.raises(Unavailable, match="the folder is gone"):
            store.add("bert", make_voice(), 1.0, ORIGIN)
    with pytest.raises(Unavailable, match="its file cannot be read"):
        store.load(record)
    elsewhere.rename(store._folder)
    assert store.get("anna") == record
