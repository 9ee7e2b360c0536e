"""The environment of Python processes that tests start."""

import os
import sys


def same_imports() -> dict[str, str]:
    """Environment variables that give a Python process the import path of this one."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
