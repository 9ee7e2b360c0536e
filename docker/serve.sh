#!/usr/bin/env bash
# The server of the image (scripts/server/serve.py); arguments go to tritonserver.
exec python3 -m scripts.server serve --model-repository=/var/lib/qwen3-tts/model_repository --build-folder=/tmp \
    --http-address=0.0.0.0 --grpc-address=0.0.0.0 --metrics-address=0.0.0.0 "$@"
