#!/usr/bin/env bash
# test.sh [--all | PYTEST ARGUMENT...]: sets up and runs the linters, the type checker and the tests; --all those marked
# long too. Tests marked gpu are skipped where there is no CUDA device.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh test
ruff check .
ruff format --check .
scripts/typecheck.sh
omitted=" and not long"
if [ "${1:-}" = --all ]; then
    omitted=
elif [ $# -gt 0 ]; then
    exec python -m pytest "$@"
fi
# Runs files in parallel, since the tests of a file share a server; then those that measure time, alone. Reads only their
# files, as all of them take ten seconds.
python -m pytest --numprocesses 3 --dist loadfile -m "not timing$omitted" tests
mapfile -t timed < <(grep --recursive --files-with-matches --include "test_*.py" mark.timing tests)
exec python -m pytest -m "timing$omitted" "${timed[@]}"
