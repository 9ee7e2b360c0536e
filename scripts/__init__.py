"""Tools of the repository; each is run from its root with `python -m scripts.…`."""

import export  # noqa: F401  (it makes the engine importable)
