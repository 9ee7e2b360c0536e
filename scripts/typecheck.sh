#!/usr/bin/env bash
# Type-checks all Python code. Several top-level modules are named model or engine_process, and mypy takes one of each
# name at a time.
set -euo pipefail
shopt -s nullglob
cd "$(dirname "$0")/.."
mypy
for program in {model_repository,tests/*/repository}/*/1/{model,engine_process}.py export/models/python/model.py \
    scripts/soak/faulty/engine_process.py; do
    mypy "$program"
done
