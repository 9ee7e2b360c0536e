"""Rows, packs and losses of the talker."""

import numpy as np
import torch

from scripts.demo_voice.encoding import CODES_FILE, Codes
from scripts.demo_voice.sizes import CODES, sizes
from scripts.demo_voice.talker.model import Talker
from scripts.demo_voice.talker.packs import LENGTH, PackedRows
from scripts.demo_voice.talker.rows import END, NONE, RowBuilder
from scripts.demo_voice.talker.training import IGNORED, distort, losses, read_rows, sample
from scripts.demo_voice.tokenizer import SpokenIds
from tests.unit.scripts.demo_voice.conftest import CPU, Miniature


def test_streamed_text_follows_frame_by_frame() -> None:
    spoken = SpokenIds()
    builder = RowBuilder(sizes("mini").talker, spoken)
    full = builder.rows([11, 12, 13], 6, 0, english=True, streaming=False)
    streamed = builder.rows([11, 12, 13], 6, 0, english=True, streaming=True)
    end, pad = (spoken.control[f"tts_{name}_token_id"] for name in ("eos", "pad"))
    # docs/model.md: n + 11 rows in the full layout, 10 in the streaming one, then one row for each frame.
    assert (len(full.text), len(streamed.text)) == (3 + 11 + 6, 10 + 6)
    assert streamed.text[9:].tolist() == [11, 12, 13, end, pad, pad, pad]
    for rows in (full, streamed):
        assert rows.says[-7:].tolist() == [0, 1, 2, 3, 4, 5, END]
        assert rows.frame[-6:].tolist() == [0, 1, 2, 3, 4, 5]
        assert (rows.frame[:-6] == NONE).all()


def test_packs_hold_whole_utterances_once(miniature: Miniature) -> None:
    rows, held, others = read_rows(miniature.folder / CODES_FILE, miniature.sizes, CPU)
    packs = rows.packs(others, np.random.default_rng(0))
    used = packs[packs != NONE]
    assert len(used.unique()) == len(used) == rows.lengths[others].sum()
    assert packs.shape[1] == LENGTH
    assert not set(held) & set(others)


def test_rows_predict_the_next_frame(miniature: Miniature) -> None:
    rows, _, others = read_rows(miniature.folder / CODES_FILE, miniature.sizes, CPU)
    batch = rows.batch(rows.packs(others, np.random.default_rng(0)))
    codes = Codes.read(miniature.folder / CODES_FILE).codes
    following = (batch.is_frame[:, 1:] & (batch.says[:, :-1] >= 0)).nonzero()
    for pack, row in following[:50].tolist():
        assert torch.equal(batch.said[pack, row], batch.codes[pack, row + 1])
        assert batch.said[pack, row].tolist() == codes[batch.says[pack, row]].tolist()


def test_utterances_of_a_pack_do_not_see_each_other(miniature: Miniature) -> None:
    rows, _, others = read_rows(miniature.folder / CODES_FILE, miniature.sizes, CPU)
    packs = rows.packs(others, np.random.default_rng(0))
    torch.manual_seed(0)
    model = Talker(miniature.sizes.talker).eval()
    together = losses(model, rows.batch(packs[:1]), 16, 0.0)
    owner = rows.batch(packs[:1]).utterance[0]
    second = owner == owner.unique_consecutive()[1]
    alone = torch.full_like(packs[:1], NONE)
    alone[0, : int(second.sum())] = packs[0, second]
    apart = losses(model, rows.batch(alone), 16, 0.0)
    found = apart.first_logits[0, : int(second.sum())]
    torch.testing.assert_close(found, together.first_logits[0, second], rtol=1e-4, atol=1e-4)


def test_every_utterance_ends(miniature: Miniature) -> None:
    rows, _, others = read_rows(miniature.folder / CODES_FILE, miniature.sizes, CPU)
    batch = rows.batch(rows.packs(others, np.random.default_rng(0)))
    found = losses(Talker(miniature.sizes.talker), batch, 16, 0.0)
    assert (found.first_targets == CODES).sum() == len(others)
    assert (found.first_targets == IGNORED).sum() == (batch.says == NONE).sum()


def test_samples_rows_that_say_a_frame() -> None:
    says = torch.tensor([[True, False, True, False, True, True]])
    assert set(sample(says, 4).tolist()) == {0, 2, 4, 5}


def test_distorts_some_codes() -> None:
    codes = torch.zeros(1000, 8, dtype=torch.long)
    wrong = (distort(codes, 0.5) != 0).float().mean()
    assert 0.2 < wrong < 0.3


def test_padding_reads_nothing(miniature: Miniature) -> None:
    rows, _, _ = read_rows(miniature.folder / CODES_FILE, miniature.sizes, CPU)
    assert isinstance(rows, PackedRows)
    batch = rows.batch(torch.full((1, 4), NONE))
    assert not batch.is_frame.any()
    assert (batch.says == NONE).all()
    assert (batch.control == NONE).all()
