"""The size of the key/value cache."""

from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch

from qwen3_tts_engine.checkpoint.configs import ModelConfig
from qwen3_tts_engine.config import ConfigError, EngineConfig
from qwen3_tts_engine.talker.loader import plan_limits
from scripts.synthetic.configs import ModelType, Size, model_config
from scripts.synthetic.tokenizer import text_tokenizer

FLOAT32 = torch.zeros(1)


def checkpoint(size: Size, model_type: ModelType) -> Any:
    fields = model_config(size, model_type, text_tokenizer(size).ids_for_config())
    return SimpleNamespace(config=ModelConfig.model_validate(fields))


@pytest.mark.parametrize("size", ["0.6b", "1.7b"])
@pytest.mark.parametrize("model_type", get_args(ModelType))
def test_default_cache_on_a_cpu_holds_the_longest_stream(size: Size, model_type: ModelType) -> None:
    limits = plan_limits(EngineConfig(checkpoint="any"), checkpoint(size, model_type), FLOAT32)
    assert limits.num_pages >= limits.max_pages


def test_refuses_a_cache_smaller_than_the_longest_stream() -> None:
    config = EngineConfig(checkpoint="any", kv_cache_gib=1.0)
    with pytest.raises(ConfigError, match=r"kv_cache_gib: 1\.00 GiB hold 4680 positions, one stream may require 6160"):
        plan_limits(config, checkpoint("1.7b", "custom_voice"), FLOAT32)
