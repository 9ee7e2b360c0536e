"""The drain file, by which an operator empties the server before it ends (scripts/embedded/drain.py)."""

from pathlib import Path

# Content of the file from which on new requests are refused.
REFUSING = "refusing"


class DrainFile:
    """While the file exists the model is not ready; while it says `refusing`, open streams alone are served.

    The two steps leave load balancers time to notice, so that none of their requests is refused.
    """

    def __init__(self, path: str) -> None:
        """An empty path never drains."""
        self._path = Path(path) if path else None

    def is_present(self) -> bool:
        return self._path is not None and self._path.exists()

    def refuses(self) -> bool:
        if self._path is None:
            return False
        try:
            return self._path.read_text().strip() == REFUSING
        except OSError:
            return False
