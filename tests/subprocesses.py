"""Python processes that tests start."""

import os
import sys


def same_imports() -> dict[str, str]:
    """An environment in which Python finds what this process finds."""
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
