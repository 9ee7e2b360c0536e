"""Tools of the repository; run them from its root with `python -m scripts.…`."""

import export  # noqa: F401  (makes the engine importable)
