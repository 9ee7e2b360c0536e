# shellcheck shell=bash disable=SC1091
# Source this with the extra to install (embedded or test): it activates an environment that has it.
# An active virtual environment is used; otherwise .venv is made. Nothing is installed a second time.

if [ -z "${VIRTUAL_ENV:-}" ]; then
    [ -d .venv ] || python3 -m venv .venv
    source .venv/bin/activate
fi

setup_stamp="$VIRTUAL_ENV/qwen3-tts-$1.sha256"
setup_sum=$(cat pyproject.toml scripts/constraints.txt | sha256sum; pwd)
if [ "$(cat "$setup_stamp" 2>/dev/null)" != "$setup_sum" ]; then
    echo "Installing into $VIRTUAL_ENV (about 1.5 GB with a CPU build of PyTorch)"
    # PyTorch first and alone: a resolver that meets it among others may look for newer builds.
    python -m pip install --constraint scripts/constraints.txt torch
    python -m pip install --constraint scripts/constraints.txt --editable ".[$1]"
    if [ "$1" = test ]; then
        # The oracle. Its own requirements are for its web demo and its audio front end.
        python -m pip install --no-deps qwen-tts==0.1.1
    fi
    echo "$setup_sum" >"$setup_stamp"
fi
unset setup_stamp setup_sum
