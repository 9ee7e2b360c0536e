"""Exports a checkpoint's codec and encoders as Triton models.

Importing it adds the packages that are served, engine, codec step and encoder program, to the import path.
"""

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_SERVED = ("model_repository/qwen3_tts/1", "model_repository/code2wav/1", "export/models/python")
sys.path += [str(_ROOT / folder) for folder in _SERVED]
