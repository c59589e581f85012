#!/usr/bin/env bash
# `make test`: every level, one after the other, cheapest first. A level that fails does not hide the later ones, and
# the closing lines of each are repeated at the end. Leaves nothing running unless KEEP is set.
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/test
failed=()
summary=()
building=

level() { # level NAME COMMAND...: runs it, keeps its log, remembers how it closed
    local name=$1 log=build/test/$1.log start=$SECONDS code
    shift
    printf '\n==> %s\n' "$name"
    "$@" 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    [[ $code -eq 0 ]] || failed+=("$name")
    summary+=("$(printf '%-11s %4d s  %s' "$name" $((SECONDS - start)) "$(grep -v '^ *$' "$log" | tail -n 1)")")
    return "$code"
}

finish() {
    code=$?
    trap - EXIT INT TERM
    kill "$building" 2>/dev/null && wait "$building"
    [[ -n "${KEEP:-}" ]] || "$PY" -m local_cluster down
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

# On a fresh machine the images take as long as the binaries, and mostly wait for the network: both at once.
"$PY" -m local_cluster.images build >build/test/image-build.log 2>&1 &
building=$!

level lint make --no-print-directory lint
level types make --no-print-directory types
level binaries "$PY" -m local_cluster binaries
level unit "$PY" -m pytest tests/unit --durations=10
level apiserver "$PY" -m pytest tests/apiserver --durations=10
wait "$building" # A failure shows again, in full, in the level "images".
if level cluster "$PY" -m local_cluster up && level images "$PY" -m local_cluster.images all; then
    level trainer "$PY" -m local_cluster.images run trainer -- python -m pytest tests/unit_trainer
    level inference "$PY" -m local_cluster.images run inference-cpu -- python -m pytest tests/unit_inference
    level e2e "$PY" -m pytest tests/e2e --durations=15
    [[ -n "${KEEP:-}" ]] || level teardown "$PY" -m pytest tests/teardown
else
    failed+=(trainer e2e)
fi

printf '\n==> summary\n'
printf '%s\n' "${summary[@]}"
if ((${#failed[@]})); then
    echo "FAILED: ${failed[*]} (logs in build/test/)"
    exit 1
fi
