#!/usr/bin/env bash
# Sets up and runs the tests; arguments go to pytest. Tests marked gpu are skipped where there is no CUDA device.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh test
ruff check .
ruff format --check .
scripts/typecheck.sh
if [ $# -gt 0 ]; then
    exec python -m pytest "$@"
fi
# Runs files in parallel, since the tests of a file share a server; then those that measure time, alone.
python -m pytest --numprocesses 2 --dist loadfile -m "not timing" tests
exec python -m pytest -m timing tests
