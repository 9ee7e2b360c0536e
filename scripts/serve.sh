#!/usr/bin/env bash
# Serves model_repository; arguments go to tritonserver.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh embedded
exec python -m scripts.server serve "$@"
