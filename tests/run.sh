#!/usr/bin/env bash
# `make test`: what a change must pass. `make test-all` (ALL=1): everything.
#
# Two tracks beside each other, neither of which waits for the other: what runs on this machine (lint, types, unit,
# apiserver), and what runs in images and on the cluster (trainer, inference, browser, end-to-end). Meanwhile the images
# are built and the local cluster comes up. Runs with torch and vLLM come last and have the machine to themselves: engines
# that start beside tests that compute get too little CPU for their probes. A level that fails does not hide the later
# ones; the closing lines of all are repeated at the end, and their logs are in build/test.
# Leaves nothing running unless KEEP is set.
set -uo pipefail
cd "$(dirname "$0")/.."
logs=build/test
rm -rf "$logs"
mkdir -p "$logs"
# pytest cuts the lines of its summary at this width.
export COLUMNS=240
# Two, or as many as are asked for: the levels were divided for two cores.
workers=${WORKERS:-2}
all=${ALL:-}
# Tests that `make test` leaves out; see the markers in pyproject.toml. An empty expression selects all.
selected="not extended" pages=smoke
[[ -z "$all" ]] || selected="" pages=""
tracks=()
teller=

level() { # level NAME COMMAND...: runs it, keeps its log, prints it as a whole when it is over, notes how it closed
    local name=$1 log=$logs/$1.log start=$SECONDS code=0
    shift
    echo "==> $name begins"
    "$@" >"$log" 2>&1 </dev/null || code=$?
    {
        # One track at a time prints.
        flock 9
        printf '\n==> %s\n' "$name"
        cat "$log"
    } 9>"$logs/.printing"
    printf '%s\t%d\t%d\n' "$name" "$code" $((SECONDS - start)) >>"$logs/levels.tsv"
    return "$code"
}

declare -A passed=()
pass_file() { # pass_file NAME: prints the file that exists if that level has passed with the present inputs
    local key
    # Without git the files of the tree are not known: no pass is found, and none kept.
    key=$("$PY" -m tests.support.level_inputs "$1") || { echo /dev/null; return; }
    echo "$RLRUN_CACHE/passed-levels/$1-$key"
}

find_passed() { # find_passed NAME...
    local name
    for name in "$@"; do
        passed[$name]=$(pass_file "$name")
    done
    mkdir -p "$RLRUN_CACHE/passed-levels"
}

has_passed() { # has_passed NAME: true if `make test` need not run that level
    [[ -z "$all" && -f "${passed[$1]}" ]]
}

unless_passed() { # unless_passed NAME COMMAND...: as level
    local name=$1
    if has_passed "$name"; then
        echo "passed before with the same inputs, at $(<"${passed[$name]}")" >"$logs/$name.log"
        printf '%s\t0\t0\n' "$name" >>"$logs/levels.tsv"
    elif level "$@" && [[ $(pass_file "$name") == "${passed[$name]}" ]]; then
        # Nothing has changed while it ran.
        git describe --always --dirty >"${passed[$name]}"
    fi
}

skipped() { # skipped NAME...: they cannot run; a level that did not run has failed
    local name
    for name in "$@"; do
        echo "did not run" >"$logs/$name.log"
        printf '%s\t1\t0\n' "$name" >>"$logs/levels.tsv"
    done
}

ready() { # ready NAME: true if that level has passed
    grep -q "^$1	0	" "$logs/levels.tsv"
}

needs_cluster() {
    [[ -n "${KEEP:-}" ]] || ! has_passed e2e || ! has_passed e2e-alone
}

images() { # On a fresh machine they take as long as the binaries, and mostly wait for the network: both at once.
    ! needs_cluster || level image-build nice "$PY" -m local_cluster.images build --tests
}

kueue() { # The apiserver level needs it. Built only then, minutes long, it would keep both workers waiting.
    level kueue-build nice "$PY" -m local_cluster tool kueue
}

on_this_machine() {
    level lint make --no-print-directory lint
    level types make --no-print-directory types
    level unit "$PY" -m pytest tests/unit -n "$workers" --dist worksteal --durations=15
    level fuzz "$PY" -m pytest -p schemathesis tests/unit/rlrun_server/rest/integration/test_fuzz.py
    [[ -z "$all" ]] || level lab "$PY" -m pytest tests/lab -n "$workers" --dist worksteal --durations=10
    # Waits for clocks and leases: beside the end-to-end level.
    unless_passed apiserver "$PY" -m pytest tests/apiserver -n "$workers" -m "$selected" --durations=10
}

cluster_up() {
    # A level of its own: builds run with low priority, the daemons of the cluster must not.
    level binaries nice "$PY" -m local_cluster binaries
    level cluster "$PY" -m local_cluster up && level images "$PY" -m local_cluster.images all --tests
}

one_by_one() { # Each of these tests computes on one core, with pauses: beside others, threads of torch would only wait.
    unless_passed trainer "$PY" -m local_cluster.images run trainer -- env OMP_NUM_THREADS=1 python -m pytest tests/image/rlrun_trainer tests/image/bench tests/image/examples --durations=10
    unless_passed inference "$PY" -m local_cluster.images run inference-cpu -- python -m pytest tests/image/rlrun_inference
    # A call of its own: while a browser of Playwright is open, no test with asyncio can run in the same process.
    unless_passed browser "$PY" -m pytest tests/browser -m "$pages" --durations=5
}

in_images_and_on_the_cluster() {
    ! needs_cluster || cluster_up &
    one_by_one
    wait $!
    if ready images || ! needs_cluster; then
        unless_passed e2e "$PY" -m pytest tests/e2e -m "not alone and not extended" -n 2 --durations=20
        unless_passed e2e-alone "$PY" -m pytest tests/e2e -m "alone and not extended" --durations=5
    else
        skipped e2e e2e-alone
    fi
}

engines_on_the_cluster() {
    if ready images; then
        level engines "$PY" -m pytest tests/e2e -m "extended and not alone" -n 2 --durations=20
        level engines-alone "$PY" -m pytest tests/e2e -m "extended and alone" --durations=5
    else
        skipped engines engines-alone
    fi
}

tell() { # Says once a minute what goes on, for whoever watches.
    local log name
    # Whoever reads the output does not wait for the end of this.
    while sleep 60 >/dev/null 2>&1; do
        for log in "$logs"/*.log; do
            name=$(basename "$log" .log)
            grep -q "^$name	" "$logs/levels.tsv" 2>/dev/null || echo "    $SECONDS s: $name goes on"
        done
    done
}

finish() {
    code=$?
    trap - EXIT INT TERM
    [[ -z "$teller" ]] || kill "$teller" 2>/dev/null
    # A track is a process group of its own. pytest ends what it started when it is interrupted, not when it is killed.
    local signal track tenths
    for signal in INT TERM; do
        for track in "${tracks[@]}"; do
            kill "-$signal" -- "-$track" 2>/dev/null
        done
        for ((tenths = 0; tenths < 100; tenths++)); do
            [[ -n "$(jobs -rp)" ]] || break
            sleep 0.1
        done
    done
    wait
    [[ -n "${KEEP:-}" ]] || "$PY" -m local_cluster down
    exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM

side_by_side() { # side_by_side TRACK...: runs the tracks beside each other and returns when all are over
    local track
    set -m
    for track in "$@"; do
        {
            trap 'exit 130' INT TERM
            "$track"
        } &
        tracks+=($!)
    done
    set +m
    wait "${tracks[@]}"
    tracks=()
}

find_passed trainer inference browser apiserver e2e e2e-alone
tell &
teller=$!
side_by_side images ${all:+kueue} on_this_machine in_images_and_on_the_cluster
[[ -z "$all" ]] || side_by_side engines_on_the_cluster
kill "$teller"
teller=
[[ -z "$all" || -n "${KEEP:-}" ]] || level teardown "$PY" -m pytest tests/teardown

printf '\n==> summary\n'
failed=()
while IFS=$'\t' read -r name code seconds; do
    printf '%-13s %4d s  %s\n' "$name" "$seconds" "$(grep -v '^ *$' "$logs/$name.log" | tail -n 1)"
    [[ $code -eq 0 ]] || failed+=("$name")
done <"$logs/levels.tsv"
if ((${#failed[@]})); then
    for name in "${failed[@]}"; do
        # Whoever sees only the end of the output needs the first causes. Tests that share a fixture repeat its error.
        printf '\n==> causes in %s\n' "$name"
        grep -E '^(E  |FAILED|ERROR|Fatal Python error|terminate called)' "$logs/$name.log" | awk '!seen[$0]++' | head -n 20
    done
    echo "FAILED: ${failed[*]} (logs in $logs/)"
    exit 1
fi
