#!/usr/bin/env bash
# build.sh OUT [g++ options]: builds the plugin against the TensorRT headers and library that g++ finds (-I, -L).
set -euo pipefail
out=${1:?output path of libcode2wav_plugin.so}
shift
folder=$(dirname "$(realpath "$0")")
exec g++ -std=c++17 -O2 -Wall -Wextra -Wno-deprecated-declarations -fPIC -shared -fvisibility=hidden "$folder"/*.cpp \
    -o "$out" "$@" -lnvinfer -ldl -Wl,--no-undefined
