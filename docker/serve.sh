#!/usr/bin/env bash
# Serves the repository that build_codec.sh prepared, with the codec in the form CODEC_FORM; arguments go to tritonserver.
set -euo pipefail
case ${CODEC_FORM:?tensorrt or python} in
    tensorrt) options=(${QWEN3_TTS_TENSORRT_PLUGIN:+"--backend-config=tensorrt,plugins=$QWEN3_TTS_TENSORRT_PLUGIN"}) ;;
    python) options=(--model-config-name=python) ;;
    *) echo "CODEC_FORM is '$CODEC_FORM': it must be tensorrt or python" >&2 && exit 2 ;;
esac
# docs/operations.md covers access control and limits.
admin_key=${QWEN3_TTS_ADMIN_KEY:-}
if [ -z "$admin_key" ]; then
    file=${TMPDIR:-/tmp}/admin_key
    admin_key=$(od -A n -N 16 -t x1 /dev/urandom | tr -d ' \n')
    rm -f "$file"
    (umask 077 && echo "$admin_key" >"$file")
    echo "The key for the header admin-key is in $file" >&2
fi
[[ $admin_key =~ ^[A-Za-z0-9_-]{16,}$ ]] ||
    { echo "QWEN3_TTS_ADMIN_KEY: 16 or more letters, digits, '_' and '-' are allowed" >&2 && exit 2; }
unset QWEN3_TTS_ADMIN_KEY
admin_only=model-repository,shared-memory,trace,logging:admin-key=$admin_key
# A request is copied into memory that tritonserver shares with the model, a file that never shrinks: limit it to 768 MiB.
# With the signal ignored, a request beyond that gets an error.
ulimit -S -f $((768 << 10))
trap '' XFSZ
# Explicit: models can be loaded and unloaded at run time. The pool holds the states of 64 streams if they are copied to
# the codec and back (2 x 166 MB, form tensorrt); with Triton's 64 MB that round trip takes 10 ms instead of 2.8.
tritonserver --model-repository=/var/lib/qwen3-tts/model_repository --model-control-mode=explicit "--load-model=*" \
    --http-restricted-api="$admin_only" --grpc-restricted-protocol="$admin_only" \
    --http-max-input-size=67108864 --grpc-max-response-pool-size=8192 \
    --backend-config=python,shm-default-byte-size=67108864 --backend-config=python,shm-growth-byte-size=16777216 \
    --cuda-memory-pool-byte-size=0:2147483648 "${options[@]}" "$@" &
# No exec: the kernel protects a container's first process from the guard that ends a dead server.
server=$! signals=0 seen=-1
trap 'signals=$((signals + 1)); kill -TERM "$server" || true' INT TERM
while [ "$seen" -ne "$signals" ]; do  # a signal interrupts the wait
    seen=$signals code=0
    wait "$server" || code=$?
done
exit "$code"
