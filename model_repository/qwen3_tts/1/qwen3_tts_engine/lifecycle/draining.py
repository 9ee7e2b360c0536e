"""The drain file, by which an operator empties the server before it ends (scripts/server/drain.py)."""

from pathlib import Path

# Content of the file: from the first on new requests are refused, from the second on open ones end.
REFUSING, ENDING = "refusing", "ending"


class DrainFile:
    """While the file exists the model is not ready; its content says whether requests are served.

    The steps leave load balancers time to notice, so that none of their requests is refused, and streams time to end.
    """

    def __init__(self, path: str) -> None:
        """An empty path never drains."""
        self._path = Path(path) if path else None

    def is_present(self) -> bool:
        return self._path is not None and self._path.exists()

    def refuses(self) -> bool:
        return self._step() in (REFUSING, ENDING)

    def ends(self) -> bool:
        return self._step() == ENDING

    def _step(self) -> str:
        if self._path is None:
            return ""
        try:
            return self._path.read_text().strip()
        except OSError:
            return ""
