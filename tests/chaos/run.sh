#!/usr/bin/env bash
# `make chaos`: the fault tests. The local cluster comes up only where the end-to-end level is asked for, and goes again
# unless KEEP is set; options in CHAOS are those of `python -m tests.chaos --help`.
set -uo pipefail
cd "$(dirname "$0")/../.."
read -ra options <<<"${CHAOS:-}"
wants=" ${options[*]} "

if [[ "$wants" != *" --list "* && "$wants" != *" --self-test "* && "$wants" != *" --help "* && "$wants" != *" -h "* ]] &&
    [[ "$wants" != *" --level "* || "$wants" == *" e2e "* ]]; then
    finish() {
        code=$?
        trap - EXIT INT TERM
        [[ -n "${KEEP:-}" ]] || "$PY" -m local_cluster down
        exit "$code"
    }
    trap finish EXIT
    trap 'exit 130' INT TERM
    "$PY" -m local_cluster up --images || exit 1
fi
"$PY" -m tests.chaos "${options[@]}"
