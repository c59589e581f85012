#!/usr/bin/env bash
# Resolve bench/trl-requirements.txt again from bench/trl.in. Usage: bench/lock.sh [path of uv]
#
# As in requirements/lock.sh: no index is written down, and torch's CUDA libraries that a CPU never opens are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
"${1:-uv}" pip compile --quiet --upgrade --python-version 3.11 --python-platform x86_64-manylinux_2_28 \
    --generate-hashes --no-emit-index-url --no-annotate --no-header --override requirements/torch-cpu-without.in \
    --constraint requirements/torch-cpu.lock --constraint requirements/trainer.lock \
    --output-file bench/trl-requirements.txt bench/trl.in
