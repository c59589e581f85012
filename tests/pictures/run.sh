#!/usr/bin/env bash
# `make pictures`: cluster, images, then the pictures. Stops the cluster at the end unless KEEP is set.
set -euo pipefail
cd "$(dirname "$0")/../.."

finish() {
    code=$?
    trap - EXIT INT TERM
    [[ -n "${KEEP:-}" ]] || "$PY" -m local_cluster down
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

"$PY" -m local_cluster up --images
"$PY" -m tests.pictures
