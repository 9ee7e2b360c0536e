#!/usr/bin/env bash
# From a fresh clone to a spoken sentence on a machine without a GPU; a second start reuses what the first one built.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh embedded
exec python -m scripts.quickstart "$@"
