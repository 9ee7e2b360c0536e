#!/usr/bin/env bash
# Serves model_repository on all GPUs behind one address; --servers N without a GPU. Other options go to each server.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh fleet
exec python -m scripts.server fleet "$@"
