#!/usr/bin/env bash
# Serves model_repository; arguments go to tritonserver, for example --model-config-name=onnxruntime without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/setup.sh embedded
exec python -m scripts.embedded.server "$@"
