#!/usr/bin/env bash
# build.sh OUT [options of g++]: builds the plugin for the TensorRT whose headers g++ finds (-I), against its library.
set -euo pipefail
out=${1:?where libcode2wav_plugin.so is to be written}
shift
folder=$(dirname "$(realpath "$0")")
exec g++ -std=c++17 -O2 -Wall -Wextra -Wno-deprecated-declarations -fPIC -shared -fvisibility=hidden "$folder"/*.cpp \
    -o "$out" "$@" -lnvinfer -ldl
