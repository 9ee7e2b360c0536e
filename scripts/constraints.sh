#!/usr/bin/env bash
# Writes scripts/constraints.txt: the versions of all packages that scripts/setup.sh installs for the tests into a new
# environment. Pins stay, except those of packages that are named as in that file: scripts/constraints.sh ruff mypy, or
# '.*' for all. Change the pin of PyTorch by hand. Run it with the oldest Python of pyproject.toml and without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
constraints=scripts/constraints.txt
for package in "$@"; do
    sed --in-place --regexp-extended "/^torch==/! { /^($package)==/Id }" "$constraints"
done
environment=$(mktemp --directory)
trap 'rm --recursive --force "$environment"' EXIT
python3 -m venv "$environment"
# shellcheck disable=SC1091
source "$environment/bin/activate"
source scripts/setup.sh test
# PyTorch's CUDA builds require a Triton of their own; a version without the name of a build fits all builds.
frozen=$(python -m pip freeze --exclude-editable | sed --quiet '/^\(triton\|uv\)==/d; s/+.*//; /==/p')
{
    echo "# The versions that the tests run with. Made by scripts/constraints.sh; scripts/setup.sh installs within them."
    echo "$frozen"
} >"$constraints"
