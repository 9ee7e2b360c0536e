"""Makes Triton models of a checkpoint's codec and encoders.

Importing it makes the engine importable, which lives where Triton looks for it: in the model repository.
"""

import sys
from pathlib import Path

_MODELS = Path(__file__).parents[1] / "model_repository"
sys.path += [str(_MODELS / "qwen3_tts" / "1"), str(_MODELS / "code2wav" / "1")]
