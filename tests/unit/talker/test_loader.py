"""The size of the key/value cache, and how weights reach the device."""

from collections import Counter
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

from qwen3_tts_engine.checkpoint.checkpoint import Checkpoint
from qwen3_tts_engine.checkpoint.configs import ModelConfig
from qwen3_tts_engine.checkpoint.tensor_shapes import talker_shapes
from qwen3_tts_engine.config import ConfigError, EngineConfig
from qwen3_tts_engine.talker.loader import MovedTensors, load_runner, plan_limits
from scripts.synthetic.configs import ModelType, Size, model_config
from scripts.synthetic.tokenizer import text_tokenizer
from tests.conftest import CheckpointOf

CPU, GPU = torch.device("cpu"), torch.device("cuda:0")


def checkpoint(size: Size, model_type: ModelType) -> Any:
    fields = model_config(size, model_type, text_tokenizer(size).ids_for_config())
    return SimpleNamespace(config=ModelConfig.model_validate(fields))


@pytest.mark.parametrize("size", ["0.6b", "1.7b"])
@pytest.mark.parametrize("model_type", get_args(ModelType))
def test_default_cache_on_a_cpu_holds_the_longest_stream(size: Size, model_type: ModelType) -> None:
    limits = plan_limits(EngineConfig(checkpoint="any"), checkpoint(size, model_type), CPU)
    assert limits.num_pages >= limits.max_pages


def test_refuses_a_cache_smaller_than_the_longest_stream() -> None:
    config = EngineConfig(checkpoint="any", kv_cache_gib=1.0)
    with pytest.raises(ConfigError, match=r"kv_cache_gib: 1\.00 GiB hold 4680 positions, one stream may require 6160"):
        plan_limits(config, checkpoint("1.7b", "custom_voice"), CPU)


def test_default_cache_on_a_gpu_has_512_positions_for_each_stream() -> None:
    for streams, positions in ((8, 6160), (64, 64 * 512)):
        limits = plan_limits(
            EngineConfig(checkpoint="any", max_streams=streams), checkpoint("1.7b", "custom_voice"), GPU
        )
        assert (limits.num_slots, limits.num_pages * limits.page_size) == (streams, positions)


@pytest.mark.parametrize("model_type", get_args(ModelType))
def test_each_tensor_is_moved_once(
    model_type: ModelType, checkpoint_of: CheckpointOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, moved = Checkpoint.open(str(checkpoint_of(model_type))), Counter[str]()
    move = MovedTensors.__getitem__

    def count(self: MovedTensors, name: str) -> torch.Tensor:
        tensor = move(self, name)
        moved[name] += 1
        return tensor

    monkeypatch.setattr(MovedTensors, "__getitem__", count)
    load_runner(opened, EngineConfig(checkpoint="any", max_streams=1, max_text_tokens=8, max_frames_limit=8), CPU)
    assert moved == dict.fromkeys(talker_shapes(opened.config), 1)
