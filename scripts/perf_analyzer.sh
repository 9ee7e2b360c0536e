#!/usr/bin/env bash
# NVIDIA's perf_analyzer against a running server; further arguments go to perf_analyzer.
#
#   scripts/perf_analyzer.sh qwen3_tts    streams: a range of concurrencies, then one of Poisson request rates
#   scripts/perf_analyzer.sh code2wav     the codec alone: batch sizes
#
# Settings, from the environment: URL, CONCURRENCY and RATE (start:end:step), INTERVAL (ms; each point takes three),
# BATCHES, FRAMES (of a code2wav chunk), CODE2WAV (folder of the served version, whose model.json has the state size),
# OUTPUT (folder), QWEN3_TTS_ADMIN_KEY (the server's; --shared-memory requires it).
set -euo pipefail
cd "$(dirname "$0")/.."
model=${1:?qwen3_tts or code2wav}
shift
URL=${URL:-localhost:8001}
OUTPUT=${OUTPUT:-artifacts/perf_analyzer-$model-$(date +%Y%m%d-%H%M%S)}
# Streams are few and long: measure three windows, however much they differ.
common=(-m "$model" -u "$URL" -i grpc --measurement-interval "${INTERVAL:-10000}" --max-trials 3 --stability-percentage 999)
common+=(${QWEN3_TTS_ADMIN_KEY:+-H "triton-grpc-protocol-admin-key:$QWEN3_TTS_ADMIN_KEY"})
perf_analyzer=$(python -m scripts.find_perf_analyzer)
mkdir -p "$OUTPUT"

streams() { # name, range flag and value
    local name=$1
    shift
    "$perf_analyzer" "${common[@]}" --async --streaming --input-data scripts/perf_analyzer/qwen3_tts.json \
        --profile-export-file "$OUTPUT/$name.json" "$@"
    qwen3-tts import "$OUTPUT/$name.json" --artifact-dir "$OUTPUT/$name"
}

case $model in
qwen3_tts)
    streams concurrency --concurrency-range "${CONCURRENCY:-1:9:4}" "$@"
    streams request_rate --request-rate-range "${RATE:-1:5:2}" --request-distribution poisson "$@"
    ;;
code2wav)
    manifest=${CODE2WAV:-model_repository/code2wav/1}/model.json
    state=$(python -c "import json, sys; print(json.load(open(sys.argv[1]))['state_size'])" "$manifest")
    # Zeros are valid codes and a cold start; the work does not depend on them.
    for batch in ${BATCHES:-1 4 16 64}; do
        "$perf_analyzer" "${common[@]}" -b "$batch" --input-data zero --shape "codes:${FRAMES:-4},16" \
            --shape "state:$state" -f "$OUTPUT/batch-$batch.csv" "$@"
    done
    ;;
*)
    echo "unknown model $model: qwen3_tts or code2wav" >&2
    exit 2
    ;;
esac
echo "results in $OUTPUT"
