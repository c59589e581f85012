#!/usr/bin/env bash
# `make bench`: cluster, images, then every benchmark, one after the other. A part that fails or exceeds its time does
# not stop the later ones, and earlier results stay in build/bench. Stops the cluster at the end unless KEEP is set.
#
#   bench/run.sh [PART...]     parts: trainer gateway wire scale server async pools tinker trl (default: all, in this order)
set -uo pipefail
cd "$(dirname "$0")/.."
mkdir -p build/bench/log
failed=()
summary=()

part() { # part NAME MINUTES COMMAND...: run for at most MINUTES, keep the log, remember its last line
    local name=$1 minutes=$2 log=build/bench/log/$1.log start=$SECONDS code
    shift 2
    printf '\n==> %s (at most %d minutes)\n' "$name" "$minutes"
    timeout --signal=INT --kill-after=60 "${minutes}m" "$@" 2>&1 | tee "$log"
    code=${PIPESTATUS[0]}
    [[ $code -eq 0 ]] || failed+=("$name")
    summary+=("$(printf '%-14s %4d s  %s' "$name" $((SECONDS - start)) "$(grep -v '^ *$' "$log" | tail -n 1)")")
}

finish() {
    code=$?
    trap - EXIT INT TERM
    [[ -n "${KEEP:-}" ]] || "$PY" -m local_cluster down
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

wanted=" ${*:-trainer gateway wire scale server async pools tinker trl} "
if [[ $wanted == " server " ]]; then
    KEEP=1 # it has an API server of its own, and leaves a cluster as it is
else
    "$PY" -m local_cluster up --images || exit 1
    # Prepare what is cached before anything is timed.
    "$PY" -m bench.prepare || failed+=(prepare)
fi

for name in trainer gateway wire scale server async pools tinker trl; do
    [[ $wanted == *" $name "* ]] || continue
    case $name in
    trainer)
        part trainer 15 "$PY" -m bench.trainer --in-image
        part trainer-gpu 12 "$PY" -m bench.trainer --device cuda
        ;;
    gateway) part gateway 10 "$PY" -m bench.gateway ;;
    wire)
        part wire 5 "$PY" -m bench.wire
        part wire-ranks 5 "$PY" -m bench.wire_ranks --in-image
        ;;
    scale) part scale 45 "$PY" -m bench.scale --scenario lifecycle ;;
    server) part server 25 "$PY" -m bench.server ;;
    async) part async 70 "$PY" -m bench.async_levels ;;
    pools) part pools 60 "$PY" -m bench.pools ;;
    tinker) part tinker 10 "$PY" -m bench.tinker --in-image ;;
    trl) part trl 80 "$PY" -m bench.trl ;;
    esac
done

printf '\n==> summary\n'
printf '%s\n' "${summary[@]}"
"$PY" -m bench.results_table --show
if ((${#failed[@]})); then
    echo "FAILED: ${failed[*]} (logs in build/bench/log)"
    exit 1
fi
