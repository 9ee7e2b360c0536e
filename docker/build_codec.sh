#!/usr/bin/env bash
# Downloads the checkpoint where it is a hub id, and builds the codec's plan for this GPU, unless both are there.
set -euo pipefail
checkpoint=${QWEN3_TTS_CHECKPOINT:?a folder, or a hub id such as Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice}
level=${TENSORRT_LEVEL:-3}
exec python3 -m export --form tensorrt --checkpoint "$checkpoint" --model-repository /var/lib/qwen3-tts \
    --tensorrt-level "$level" --tensorrt-cache /var/cache/qwen3-tts/tensorrt
