#!/usr/bin/env bash
# Sets up and runs the tests; arguments go to pytest. Tests marked gpu are skipped where there is no CUDA device.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh test
ruff check .
ruff format --check .
mypy
if [ $# -gt 0 ]; then
    exec python -m pytest "$@"
fi
# In parallel where nothing is timed; a server's tests run alone.
python -m pytest --numprocesses 2 --dist loadfile tests/unit tests/oracle
exec python -m pytest tests/e2e tests/gpu
