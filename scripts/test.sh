#!/usr/bin/env bash
# Sets up and runs the tests; arguments go to pytest. Tests marked gpu are skipped where there is no CUDA device.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh test
ruff check .
ruff format --check .
mypy
exec python -m pytest "$@"
