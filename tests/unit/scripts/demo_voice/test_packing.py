"""Snapshots, the packed checkpoint, and the server's engine with it."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from code2wav_step.kernel_ops import MIN_DIMENSION
from qwen3_tts_engine.checkpoint.alignment import TextLayout
from qwen3_tts_engine.checkpoint.checkpoint import WEIGHTS, Checkpoint
from qwen3_tts_engine.checkpoint.configs import CodecDecoderConfig, ModelConfig
from qwen3_tts_engine.checkpoint.tensor_shapes import codec_decoder_shapes, talker_shapes
from qwen3_tts_engine.codec.contract import state_layout
from scripts.benchmarks.demo_voice import CHECKPOINT
from scripts.demo_voice import flite, snapshots
from scripts.demo_voice.codec.decoder import Decoder
from scripts.demo_voice.codec.training import SNAPSHOT as CODEC
from scripts.demo_voice.encoding import Codes
from scripts.demo_voice.evaluation import report
from scripts.demo_voice.packing import EMBEDDING, decoder_tensors, is_inactive
from scripts.demo_voice.recognition import cepstra
from scripts.demo_voice.sizes import ACTIVE, CODES, FRAME, VOICE_SPEAKERS, model_config, sizes
from scripts.demo_voice.speaking import Speaker
from scripts.demo_voice.talker import packs
from scripts.demo_voice.talker.model import Talker
from scripts.demo_voice.talker.packs import PackedRows
from scripts.demo_voice.talker.rows import RowBuilder
from scripts.demo_voice.talker.training import losses
from scripts.demo_voice.tokenizer import SpokenIds
from tests.unit.scripts.demo_voice.conftest import CPU, Miniature

TEXT = "Hello! Can you hear me?"
LIMIT_BYTES = 30_000_000
JSON_BYTES = 60_000


def test_the_full_size_fits() -> None:
    full = sizes("full")
    decoder = codec_decoder_shapes(CodecDecoderConfig.model_validate(full.decoder))
    shapes = talker_shapes(ModelConfig.model_validate(model_config(full))) | decoder
    assert 2 * sum(map(math.prod, shapes.values())) + JSON_BYTES < LIMIT_BYTES


def test_the_gpu_kernels_support_the_full_size() -> None:
    """The condition of code2wav_step.kernel_ops.KernelOps."""
    config = CodecDecoderConfig.model_validate(sizes("full").decoder)
    channels = [piece.shape[0] for piece in state_layout(config) if piece.name not in ("keys", "values")]
    assert not any(count % MIN_DIMENSION for count in channels)
    assert config.head_dim % (2 * MIN_DIMENSION) == 0


def test_inactive_codebooks_are_silent(miniature: Miniature) -> None:
    speaker = Speaker(miniature.checkpoint)
    codes = np.random.default_rng(0).integers(0, CODES, (5, 16))
    other = codes.copy()
    other[:, ACTIVE:] = 0
    assert (speaker.decode(codes) == speaker.decode(other)).all()
    assert is_inactive(f"talker.code_predictor.lm_head.{ACTIVE - 1}.weight")
    assert not is_inactive(f"talker.code_predictor.lm_head.{ACTIVE - 2}.weight")


def test_the_served_codec_is_the_trained_one(miniature: Miniature) -> None:
    decoder = Decoder(miniature.sizes.decoder, ACTIVE).eval()
    tensors = decoder_tensors(snapshots.load(miniature.folder / CODEC))
    decoder.load_state_dict({name.removeprefix("decoder."): tensor.half() for name, tensor in tensors.items()})
    codes = np.random.default_rng(1).integers(0, CODES, (1, 21, 16))
    with torch.no_grad():
        trained = decoder(torch.from_numpy(codes[..., :ACTIVE]))[0]
    served = Speaker(miniature.checkpoint).decode(codes[0])
    assert np.abs(served / 32767 - trained.clamp(-1, 1).numpy()).max() < 1e-3


@pytest.mark.parametrize("layout", ["full", "streaming"])
@pytest.mark.parametrize("language", ["english", "auto"])
def test_the_engine_speaks_what_was_trained(
    miniature: Miniature, layout: TextLayout, language: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy codes of the engine are the likeliest ones when training reads the same codes."""
    request: dict[str, Any] = {"text": TEXT, "speaker": VOICE_SPEAKERS[1], "language": language}
    request |= {"temperature": 0.0, "repetition_penalty": 1.0, "max_frames": 12}
    [codes] = Speaker(miniature.checkpoint, layout).codes([request])
    spoken = SpokenIds()
    one = Codes(codes.astype(np.uint8), np.array([len(codes)]), np.array([0]), np.array([1]))
    monkeypatch.setattr(packs, "ENGLISH", 1.0 if language == "english" else 0.0)
    rows = PackedRows(one, spoken.of([TEXT]), RowBuilder(miniature.sizes.talker, spoken), CPU)
    index = 1 if layout == "streaming" else 0
    start = int(rows.lengths[:index].sum())
    pack = torch.arange(start, start + rows.lengths[index])[None]
    with torch.no_grad():
        found = losses(_packed_talker(miniature), rows.batch(pack), len(codes), 0.0)
    speaks = (found.first_targets >= 0) & (found.first_targets < CODES)
    logits = found.first_logits[speaks]
    logits[:2, CODES] = -torch.inf
    assert logits.argmax(-1).tolist() == codes[:, 0].tolist()
    predicted = sorted(map(tuple, found.other_logits.argmax(-1).tolist()))
    assert predicted == sorted(map(tuple, codes[:, 1:ACTIVE].tolist()))


def test_every_listed_speaker_is_a_voice_of_its_own() -> None:
    checkpoint = Checkpoint.open(str(CHECKPOINT))
    with safe_open(checkpoint.path(WEIGHTS), "pt") as file:
        embedding = file.get_tensor(EMBEDDING)
    rows = checkpoint.config.talker_config.spk_id
    assert tuple(rows) == VOICE_SPEAKERS == tuple(model_config(sizes("full"))["talker_config"]["spk_id"])
    assert len(embedding[list(rows.values())].unique(dim=0)) == len(flite.VOICES) == len(rows)


def test_parts_join_to_a_compact_snapshot(
    miniature: Miniature, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots, "PART_BYTES", 1 << 20)
    snapshots.carry(miniature.folder, (CODEC, "codes.npz", "missing.pt"), tmp_path / "parts")
    assert max(path.stat().st_size for path in (tmp_path / "parts").iterdir()) <= 1 << 20
    assert snapshots.restore(tmp_path / "parts", tmp_path / "restored") == ["codec.pt", "codes.npz"]
    whole, compact = (snapshots.load(folder / CODEC) for folder in (miniature.folder, tmp_path / "restored"))
    averaged = whole["averages"]["model"]
    name, value = next(iter(averaged.items()))
    torch.testing.assert_close(compact["model"][name].float(), value, rtol=1e-3, atol=1e-4)
    assert "optimizers" not in compact


def test_reports_the_teacher_as_itself() -> None:
    rng = np.random.default_rng(0)
    sounds = [rng.integers(-9000, 9000, FRAME * 5).astype(np.int16) for _ in range(3)]
    texts = ["one", "two", "three"]
    heard = iter(["one", "too", "three"])
    figures = report(texts, sounds, sounds, [cepstra(s) for s in sounds], lambda _: next(heard))
    assert figures["wer"] == pytest.approx(1 / 3, abs=1e-3)
    assert figures["retrieval"] == figures["duration"] == figures["durations_within_20_percent"] == 1.0


def _packed_talker(miniature: Miniature) -> Talker:
    packed = load_file(miniature.checkpoint / WEIGHTS)
    tensors = {name.removeprefix("talker."): t.float() for name, t in packed.items() if not is_inactive(name)}
    eos = miniature.sizes.talker["codec_eos_token_id"]
    head = tensors["codec_head.weight"]
    tensors["codec_head.weight"] = torch.cat([head[:CODES], head[eos : eos + 1]])
    talker = Talker(miniature.sizes.talker).eval()
    talker.load_state_dict(tensors)
    return talker
