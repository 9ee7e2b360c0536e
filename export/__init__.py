"""Exports a checkpoint's codec and encoders as Triton models.

Importing it adds the engine and the codec step, which lie in the model repository, to the import path.
"""

import sys
from pathlib import Path

_MODELS = Path(__file__).parents[1] / "model_repository"
sys.path += [str(_MODELS / "qwen3_tts" / "1"), str(_MODELS / "code2wav" / "1")]
