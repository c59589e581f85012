"""Scenario `silence`: the orchestrators of most runs stop responding, as on a lost node.

At the same time, trainers of other runs crash. Then the operator is replaced.
"""

import time

from bench.repetitions import percentile
from bench.report import at_most
from bench.scale.scenarios import events, steps
from bench.scale.scenarios.delays import EventDelays
from bench.scale.scenarios.scenario import MIB, FigureRow, Figures, Options, Scenario
from bench.scale.testbed import objects
from bench.scale.testbed.cluster import ScaleCluster, wait_for
from bench.scale.testbed.readings import read

OTHER_RUNS = 20
"""Number of runs whose orchestrators respond. The trainer of each has a crash."""
CRASH_PAUSE_SECONDS = 1.0
REASON = "OrchestratorUnreachable"

WHAT = "{runs} runs whose orchestrators stop responding"
OTHERS = f", and {OTHER_RUNS} others: "
ROWS = (
    FigureRow(
        "silence requests",
        WHAT + ": requests per second during the silence, including the Lease",
        "quiet_requests",
        "requests/s",
        at_most(2.0),
        "{quiet_looks:.1f} looks/s, {waiting:.0f} runs wait for a worker; {quiet_cpu_seconds:.3f} cores; "
        "{control_plane}",
    ),
    FigureRow(
        "silence of others to status",
        WHAT + OTHERS + "from the crash of one of the others' trainers to the status that counts it, in a watch, p99",
        "crash_p99",
        "s",
        at_most(1.0),
        "p50 {crash_p50:.2f} s; memory {resident_mib:.0f} MiB",
    ),
    # A silence is detected after 30 s. A hanging request takes 35 s, the previous one up to 25 s.
    FigureRow(
        "silence to condition",
        WHAT + ": from the begin of the silence until the condition of each says so, p99",
        "shown_p99",
        "s",
        at_most(90.0),
        "p50 {shown_p50:.1f} s",
    ),
    FigureRow(
        "silence start",
        WHAT + OTHERS + "from the moment at which the next operator leads until it has looked at all of them",
        "start_seconds",
        "s",
        at_most(15.0),
    ),
)


def play(options: Options) -> Figures:
    """Play the scenario on a new cluster."""
    with ScaleCluster() as cluster:
        operator = cluster.start_leader()
        print(f"{options.runs} runs whose orchestrators will not respond, and {OTHER_RUNS} others", flush=True)
        steps.burst_of_runs(cluster, operator, "silent", options.runs)
        steps.burst_of_runs(cluster, operator, "runs", OTHER_RUNS)
        shown = EventDelays()

        def on_status(run: str, status: events.Status, now: float) -> None:
            conditions = status.get("conditions") or []
            if any(condition.get("reason") == REASON for condition in conditions):
                shown.show(run, now)

        with events.follow(cluster, "", on_status, all_runs=True):
            began = time.time()
            for number in range(options.runs):
                place = objects.place_of("silent", number)
                shown.cause(f"{place}/{objects.run(number)['metadata']['name']}", began)
            cluster.set_silent(objects.namespaces("silent"))
            wait_for(
                f"{REASON} of all of them",
                lambda: operator.require_running() and not shown.missing,
                shown=lambda: f"{shown.missing} missing",
            )
            print(f"{options.rest_seconds:.0f} s of silence", flush=True)
            quiet = steps.rest(operator, options.rest_seconds)
            waiting = read(operator).waiting
            print(f"crashes of the {OTHER_RUNS} others", flush=True)
            delays = events.crash_delays(cluster, "runs", OTHER_RUNS, CRASH_PAUSE_SECONDS)
            resident = read(operator).resident_bytes
        print("another operator starts", flush=True)
        operator.end()
        operator = cluster.start_leader()
        led = time.monotonic()
        steps.wait_until_looked(operator, options.runs + OTHER_RUNS)
        start_seconds = time.monotonic() - led
    silences = shown.until(time.time())
    return {
        "runs": options.runs,
        **quiet.rates("quiet"),
        "waiting": waiting,
        "crash_p50": percentile(delays, 50),
        "crash_p99": percentile(delays, 99),
        "shown_p50": percentile(silences, 50),
        "shown_p99": percentile(silences, 99),
        "resident_mib": resident / MIB,
        "start_seconds": start_seconds,
    }


SCENARIO = Scenario(
    "orchestrators that do not respond, as on a lost node: requests, and the effect on other runs",
    play,
    ROWS,
    runs=100,
    repeats=3,
    minutes=4,
)
