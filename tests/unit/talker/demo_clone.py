"""The demo voice as a Base checkpoint: its x-vector is the embedding of its speaker."""

import json
from pathlib import Path

from qwen3_tts_engine.checkpoint.checkpoint import CONFIG, WEIGHTS, Checkpoint, load_tensors
from qwen3_tts_engine.checkpoint.tensor_shapes import talker_shapes
from qwen3_tts_engine.voice import Voice
from scripts.demo_voice.speaking import Speaker

DEMO = Path(__file__).parents[3] / "scripts" / "demo_voice" / "tiny-speaking"
SPEAKER, TEXT = "vivian", "The meeting is on the second floor."
EMBEDDING = "talker.model.codec_embedding.weight"


def base_checkpoint(folder: Path) -> Checkpoint:
    """The demo voice in `folder`, without a speaker encoder."""
    for file in DEMO.iterdir():
        (folder / file.name).symlink_to(file)
    config = json.loads((DEMO / CONFIG).read_text())
    config |= {
        "tts_model_type": "base",
        "speaker_encoder_config": {"enc_dim": config["talker_config"]["hidden_size"], "sample_rate": 24000},
    }
    (folder / CONFIG).unlink()
    (folder / CONFIG).write_text(json.dumps(config))
    return Checkpoint.open(str(folder))


def clone() -> Voice:
    """The speaker, in the context of a sentence."""
    config = Checkpoint.open(str(DEMO)).config
    embeddings = load_tensors(DEMO / WEIGHTS, {EMBEDDING: talker_shapes(config)[EMBEDDING]})[EMBEDDING]
    [codes] = Speaker(DEMO).codes([{"text": TEXT, "speaker": SPEAKER, "language": "english", "seed": 3}])
    return Voice(embeddings[config.talker_config.spk_id[SPEAKER]].float().numpy(), codes, TEXT)
