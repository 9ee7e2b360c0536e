#!/usr/bin/env bash
# Serves what build_codec.sh laid out, with the codec in the form CODEC_FORM; arguments go to tritonserver.
set -euo pipefail
case ${CODEC_FORM:?tensorrt or python} in
    tensorrt) options=(${QWEN3_TTS_TENSORRT_PLUGIN:+"--backend-config=tensorrt,plugins=$QWEN3_TTS_TENSORRT_PLUGIN"}) ;;
    python) options=(--model-config-name=python) ;;
    *) echo "CODEC_FORM is '$CODEC_FORM': it must be tensorrt or python" >&2 && exit 2 ;;
esac
# Explicit: the only mode in which a model may leave the ready state, as qwen3_tts does when its engine dies. The pool
# holds the states of 64 streams where they travel to the codec and back (2 x 166 MB, in the form tensorrt); with Triton's
# 64 MB that hop takes 10 ms in place of 2.8.
exec tritonserver --model-repository=/var/lib/qwen3-tts/model_repository --model-control-mode=explicit "--load-model=*" \
    --cuda-memory-pool-byte-size=0:2147483648 "${options[@]}" "$@"
