#!/usr/bin/env bash
# `make demo`: cluster, images, then the demo. Stops the cluster at the end unless KEEP is set. With CONTROL the same run
# follows without learning.
set -euo pipefail
cd "$(dirname "$0")/.."

finish() {
    code=$?
    trap - EXIT INT TERM
    if [[ -n "${KEEP:-}" ]]; then
        echo "The local cluster stays up: export KUBECONFIG=$("$PY" -m local_cluster kubeconfig); \`make down\` removes it."
    else
        "$PY" -m local_cluster down
    fi
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

"$PY" -m local_cluster up --images
"$PY" -m demo ${CONTROL:+--control}
