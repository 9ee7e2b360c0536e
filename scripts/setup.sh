# shellcheck shell=bash disable=SC1091
# Source this with the extra to install (embedded, fleet or test). Uses the active virtual environment, otherwise creates and
# activates .venv. Installs once.

if [ -z "${VIRTUAL_ENV:-}" ]; then
    [ -d .venv ] || python3 -m venv .venv
    source .venv/bin/activate
fi

setup_stamp="$VIRTUAL_ENV/qwen3-tts-$1.sha256"
setup_sum=$(cat pyproject.toml scripts/constraints.txt scripts/install_torch.py | sha256sum; pwd)
if [ "$(cat "$setup_stamp" 2>/dev/null)" != "$setup_sum" ]; then
    echo "Installing into $VIRTUAL_ENV (about 1.7 GB with a CPU build of PyTorch)"
    # PyTorch first and alone: resolved with others, it may be replaced by a newer build.
    setup_constraints=$VIRTUAL_ENV/qwen3-tts-constraints.txt
    python scripts/install_torch.py >"$setup_constraints"
    python -m pip install --constraint "$setup_constraints" --editable ".[$1]"
    if [ "$1" = test ]; then
        # The oracle, whose own requirements are for its web demo and its audio front end; a client of the gateway; axe-core,
        # which checks the page, without Playwright.
        python -m pip install --no-deps qwen-tts==0.1.1 pipecat-ai==1.14.0 axe-playwright-python==0.1.8
        # Helm 4, a library for any Python, which the tests load in 3.11 too.
        python -m pip install --no-deps --ignore-requires-python helm-sdkpy==0.1.32
        command -v chromedriver >/dev/null || scripts/chromium.sh || echo "No Chromium: skipping the tests of the page"
        { command -v initdb && command -v postgres; } >/dev/null || scripts/postgres.sh ||
            echo "No PostgreSQL: skipping the tests of the voices' database"
    fi
    echo "$setup_sum" >"$setup_stamp"
fi
unset setup_stamp setup_sum setup_constraints
