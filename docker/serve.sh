#!/usr/bin/env bash
# Serves the repository that build_codec.sh prepared, with the codec in the form CODEC_FORM, or in the form python where
# there is no plan; arguments go to tritonserver.
set -euo pipefail
form=${CODEC_FORM:?tensorrt or python}
if [ "$form" = tensorrt ] && grep -qs '"form": "python"' /var/lib/qwen3-tts/model_repository/code2wav/1/model.json; then
    form=python
fi
case $form in
    tensorrt) options=(${QWEN3_TTS_TENSORRT_PLUGIN:+"--backend-config=tensorrt,plugins=$QWEN3_TTS_TENSORRT_PLUGIN"}) ;;
    python) options=(--model-config-name=python) ;;
    *) echo "CODEC_FORM is '$form': it must be tensorrt or python" >&2 && exit 2 ;;
esac
case ${QWEN3_TTS_MPS:-auto} in
    auto | off) ;;
    *) echo "QWEN3_TTS_MPS is '$QWEN3_TTS_MPS': it must be auto or off" >&2 && exit 2 ;;
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
# Starts and tries an MPS daemon, so that talker and codec run on the GPU at the same time (docs/operations.md, MPS).
# scripts/embedded/mps.py does the same without a container.
mps='' folder='' control=nvidia-cuda-mps-control
start_mps() {
    local devices=${CUDA_VISIBLE_DEVICES-0} daemon=(setsid "$control" -f)
    if [ "${QWEN3_TTS_MPS:-auto}" = off ] || [ -n "${CUDA_MPS_PIPE_DIRECTORY:-}" ] || [ ! -e /dev/nvidiactl ] ||
        [ "${devices:--1}" = -1 ]; then
        return
    fi
    PATH=$PATH:/usr/local/nvidia/bin
    command -v "$control" >/dev/null || { no_mps "$control is not on PATH" && return; }
    # In /tmp, since the path of a socket has at most 108 bytes.
    folder=$(mktemp --directory /tmp/mps-XXXXXX) || { no_mps "/tmp takes no folder" && return; }
    export CUDA_MPS_PIPE_DIRECTORY=$folder CUDA_MPS_LOG_DIRECTORY=$folder
    # A daemon renumbers the devices that it is given, so given index 1 its clients would have to ask for index 0.
    [[ $devices = 0 || $devices =~ [^0-9,\ ] ]] || daemon=(env --unset=CUDA_VISIBLE_DEVICES "${daemon[@]}")
    "${daemon[@]}" </dev/null >>"$folder/daemon.log" 2>&1 &
    mps=$!
    try_mps >>"$folder/daemon.log" 2>&1 ||
        { no_mps "the MPS daemon cannot be used: $(tail -n 1 "$folder/daemon.log")" && return; }
    echo "mps: talker and codec share the GPU, the daemon's logs are in $folder" >&2
}
try_mps() {
    local deadline=$((SECONDS + 30))
    until echo get_server_list | timeout 5 "$control" >/dev/null 2>&1; do
        kill -0 "$mps" 2>/dev/null || return
        [ "$SECONDS" -lt "$deadline" ] || { echo "MPS was not ready after 30 s" && return 1; }
        sleep 0.05
    done
    timeout --verbose 30 python3 -I -S mps_probe.py
}
stop_mps() {
    if [ -n "$mps" ]; then
        echo quit | timeout 5 "$control" >/dev/null || true
        # Its group includes the MPS server.
        kill -KILL -- "-$mps" || true
        wait "$mps" || true
    fi
    [ -z "$folder" ] || rm -rf "$folder"
} 2>/dev/null
no_mps() {
    stop_mps
    mps='' folder=''
    unset CUDA_MPS_PIPE_DIRECTORY CUDA_MPS_LOG_DIRECTORY
    echo "mps: $1; without MPS talker and codec take turns on the GPU: a fifth to a third less throughput at 64 to" \
        "1 000 streams, measured on one H200" >&2
}
# The signals of `docker stop` and Ctrl-C reach the server, also those that come before it has started. The first one
# drains it (docs/operations.md, Shutdown), a second one ends its streams, one more kills it.
server='' ender='' signals=0 seen=-1
export QWEN3_TTS_DRAIN_FILE=${QWEN3_TTS_DRAIN_FILE:-${TMPDIR:-/tmp}/drain}
rm -f "$QWEN3_TTS_DRAIN_FILE"
trap 'signals=$((signals + 1)); [ -z "$server" ] || end_server' INT TERM
# shellcheck disable=SC2329 # called by the trap
end_server() {
    [ -z "$ender" ] || kill "$ender" || true
    case $signals in
        1) python3 -I -S drain.py --end "$server" & ;;
        2) python3 -I -S drain.py --end "$server" --seconds 0 & ;;
        *) kill -KILL "$server" || true ;;
    esac
    ender=$!
}
start_mps
# A request is copied into memory that tritonserver shares with the model, a file that never shrinks: limit it to 768 MiB.
# With the signal ignored, a request beyond that gets an error.
ulimit -S -f $((768 << 10))
trap '' XFSZ
# Explicit: models can be loaded and unloaded at run time. Their configurations are complete: to complete them, Triton
# starts each Python model's process once more.
tritonserver --model-repository=/var/lib/qwen3-tts/model_repository \
    --model-control-mode=explicit "--load-model=*" --disable-auto-complete-config --exit-timeout-secs=5 \
    --http-restricted-api="$admin_only" --grpc-restricted-protocol="$admin_only" \
    --http-max-input-size=67108864 --grpc-max-response-pool-size=8192 \
    --backend-config=python,shm-default-byte-size=67108864 --backend-config=python,shm-growth-byte-size=16777216 \
    "${options[@]}" "$@" &
# No exec: the kernel protects a container's first process from the guard that ends a dead server. One command, so that a
# signal comes before the server is known, and ends it, or after, and drains it.
early=$signals server=$!
[ "$early" -eq 0 ] || kill -TERM "$server" || true
python3 -I stream_check.py --process "$server" &
check=$!
while [ "$seen" -ne "$signals" ]; do  # a signal interrupts the wait
    seen=$signals code=0
    wait "$server" || code=$?
done
kill "$check" 2>/dev/null || true
stop_mps
exit "$code"
