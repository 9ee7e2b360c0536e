#!/usr/bin/env bash
# Prepares the served model repository. Downloads the checkpoint if it is a hub id, and builds the missing files for it
# and for this GPU, with the codec in the form CODEC_FORM; where a plan cannot be built or verified, in the form python.
set -euo pipefail
checkpoint=${QWEN3_TTS_CHECKPOINT:?a folder, or a hub id such as Qwen/Qwen3-TTS-12Hz-1.7B-CustomVoice}
form=${CODEC_FORM:?tensorrt or python}
level=${TENSORRT_LEVEL:-3}
case $form in
    tensorrt | python) ;;
    *) echo "CODEC_FORM is '$form': it must be tensorrt or python" >&2 && exit 2 ;;
esac
repository=/var/lib/qwen3-tts/model_repository
mkdir -p "$repository"
# The models of this image; files that were built before stay.
cp --recursive model_repository/. "$repository"
build() {
    python3 -m export --form "$1" --checkpoint "$checkpoint" --model-repository "$repository" \
        --tensorrt-level "$level" --tensorrt-cache /var/cache/qwen3-tts/tensorrt
}
build "$form" && exit
[ "$form" = tensorrt ] || exit 1
echo "codec: no TensorRT plan here, for the reason above; the same kernels run without TensorRT (CODEC_FORM=python)" >&2
build python
