"""Scenario `many`: an operator starts while 10,000 runs exist, of which 9,000 are finished."""

import time
from collections import Counter

from bench.report import at_most
from bench.scale.scenarios import steps
from bench.scale.scenarios.scenario import MIB, FigureRow, Figures, Options, Scenario
from bench.scale.testbed import objects
from bench.scale.testbed.cluster import ScaleCluster
from bench.scale.testbed.readings import Reading, read

SWEEP_SECONDS = 3600.0
"""Deadline in seconds for reconciling the finished runs. An operator reconciles ten of them per second."""

WHAT = "{runs} active and {finished} finished runs: "
ROWS = (
    FigureRow(
        "many start",
        WHAT + "from the start of an operator until it has looked at all active ones",
        "start_seconds",
        "s",
        at_most(30.0),
        "Lease after {leads_seconds:.1f} s; {start_requests:.0f} requests and {start_cpu_seconds:.1f} s CPU; "
        "{control_plane}",
    ),
    FigureRow(
        "many writes of a start",
        WHAT + "writes of a starting operator, until shortly after it is quiet, without the Lease",
        "writes",
        "writes",
        at_most(0),
        "{written}",
    ),
    FigureRow("many memory", WHAT + "resident memory of the operator", "resident_mib", "MiB", at_most(300.0)),
    FigureRow(
        "many requests after a start",
        WHAT + "requests per second directly after a start, while the operator reconciles the finished runs",
        "sweep_requests",
        "requests/s",
        note="{sweep_looks:.1f} looks per second, {sweep_cpu_seconds:.2f} cores; all were reconciled "
        "{sweep_total_seconds:.0f} s after the active ones",
    ),
    FigureRow(
        "many requests of quiet runs",
        WHAT + "requests per second while nothing happens, with those for the Lease",
        "quiet_requests",
        "requests/s",
        at_most(20.0),
        "{quiet_looks:.1f} looks per second, {quiet_listings:.0f} lists of S3, {quiet_cpu_seconds:.3f} cores",
    ),
)


def play(options: Options) -> Figures:
    """Let one operator start the active runs, and then another operator reconcile them together with the finished
    runs.
    """
    with ScaleCluster() as cluster:
        first = cluster.start_leader()
        print(f"{options.runs} active runs", flush=True)
        steps.burst_of_runs(cluster, first, "runs", options.runs)
        template = steps.finished_template(cluster, first)
        # Their number is written with each list of all runs. If this operator did not write it, the next one would.
        steps.wait_for_count_of_runs(cluster, options.runs)
        # The finished runs get their statuses while no operator can start them.
        first.end()
        print(f"{options.finished} finished runs", flush=True)
        steps.create_namespaces(cluster, "finished")
        cluster.bulk.send(objects.finished_runs("finished", options.finished, template))
        print("another operator starts", flush=True)
        begin = Reading.begin(time.monotonic())
        operator = cluster.start_leader()
        leads_seconds = time.monotonic() - begin.at
        after = steps.wait_until_looked(operator, options.runs)
        sweep = steps.rest(operator, options.rest_seconds)
        print("the finished runs are looked at", flush=True)
        quiet_from = steps.wait_until_settled(operator, SWEEP_SECONDS)
        print(f"{options.rest_seconds:.0f} s without a step", flush=True)
        quiet = steps.rest(operator, options.rest_seconds)
        resident = read(operator).resident_bytes
    start, later = after.since(begin), quiet_from.since(after)
    written = sum((Counter(used.written) for used in (start, later, quiet)), Counter[str]())
    return {
        "runs": options.runs,
        "finished": options.finished,
        "leads_seconds": leads_seconds,
        "start_seconds": start.at,
        "start_requests": start.requests,
        "start_cpu_seconds": start.cpu_seconds,
        "writes": start.writes + later.writes + quiet.writes,
        "written": ", ".join(f"{count:.0f} x {request}" for request, count in sorted(written.items())) or "none",
        **sweep.rates("sweep"),
        "sweep_total_seconds": later.at,
        **quiet.rates("quiet"),
        "resident_mib": resident / MIB,
    }


SCENARIO = Scenario(
    "start, memory and quiet requests of an operator with 1,000 active and 9,000 finished runs",
    play,
    ROWS,
    runs=1000,
    finished=9000,
    repeats=1,
    minutes=30,
)
