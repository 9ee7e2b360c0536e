"""Writes the version of client/qwen3_tts_client/__init__.py into the files of docker/ and the page that name it.

python -m scripts.version
"""

import re
from pathlib import Path

from qwen3_tts_client import __version__

ROOT = Path(__file__).parents[1]
VERSION = r"\d+\.\d+\.\d+(?:-?rc\d+)?"
LABEL = "(org.opencontainers.image.version=)"
TAG = r"(qwen3-tts-(?:triton|client|gateway)(?::|,?\s+tag: ))"
CHART = "(?m:^(version: ))"
PLACES = {
    "docker/Dockerfile": (LABEL,),
    "docker/compose.yaml": (TAG,),
    "docker/helm/qwen3-tts/Chart.yaml": (CHART, "(?m:^(appVersion: ))"),
    "docker/helm/qwen3-tts/values.yaml": (TAG,),
    "docs/kubernetes.md": (TAG,),
}
"""What precedes the version, by file."""


def semantic(version: str) -> str:
    """The form that Helm requires: 1.0.0rc1 is 1.0.0-rc1."""
    return re.sub(r"(?<=\d)rc", "-rc", version)


def written(path: str, version: str = __version__) -> str:
    """The file with this version in all its places."""
    text = (ROOT / path).read_text()
    for place in PLACES[path]:
        number = semantic(version) if place == CHART else version
        text, count = re.subn(place + VERSION, rf"\g<1>{number}", text)
        if not count:
            raise ValueError(f"{path}: no version after {place}")
    return text


if __name__ == "__main__":
    for path in PLACES:
        (ROOT / path).write_text(written(path))
