"""Scenario `burst`: 1,000 runs at once, compared with as many pods of bare Jobs on the same API server."""

from bench.repetitions import percentile
from bench.report import at_least, at_most
from bench.scale.scenarios import events, steps
from bench.scale.scenarios.scenario import HIGHER, MIB, FigureRow, Figures, Options, Scenario
from bench.scale.testbed import objects
from bench.scale.testbed.cluster import ScaleCluster
from bench.scale.testbed.readings import read

STEPS_PER_SECOND = 20.0
"""Maximum steps per second of all runs together: with 1,000 runs, each makes a step every 50 s. A step changes a status
twice.
"""
CRASHES = 60
CRASH_PAUSE_SECONDS = 0.5

ROWS = (
    FigureRow(
        "burst pods against Jobs",
        "{runs} runs created at once: running pods per second / the same number of pods of bare Jobs",
        "against_jobs",
        "x",
        at_least(0.5),
        "{runs_rate:.1f} and {jobs_rate:.1f} pods/s; {control_plane}",
        HIGHER,
    ),
    FigureRow(
        "burst requests of a new run",
        "{runs} runs created at once: requests of the operator to the API server for each",
        "requests_of_a_run",
        "requests",
        note="{cpu_ms_of_a_run:.0f} ms CPU of the operator, {looks_of_a_run:.1f} looks",
    ),
    FigureRow(
        "burst requests of quiet runs",
        "{runs} runs that train, while none makes a step: requests per second, with those for the Lease",
        "quiet_requests",
        "requests/s",
        at_most(2.0),
        "{quiet_writes:.0f} writes, {quiet_listings:.0f} lists of S3, {quiet_cpu_seconds:.3f} cores",
    ),
    FigureRow(
        "burst step to status",
        "{runs} runs with a step every {step_seconds:g} s each: from a step to its status in a watch, p99",
        "step_p99",
        "s",
        at_most(1.0),
        "p50 {step_p50:.2f} s; {training_requests:.1f} requests/s and {training_cpu_seconds:.2f} cores",
    ),
    FigureRow(
        "burst event to status",
        "{runs} runs that train: from the crash of a trainer to the status that counts it, in a watch, p99",
        "event_p99",
        "s",
        at_most(1.0),
        "p50 {event_p50:.2f} s, of {crashes} crashes",
    ),
    FigureRow(
        "burst memory", "{runs} runs that train: resident memory of the operator", "resident_mib", "MiB", at_most(230.0)
    ),
)


def play(options: Options) -> Figures:
    """Measure the Jobs, delete them, and then measure the runs on the same API server."""
    runs = options.runs
    pods = objects.PODS_PER_RUN * runs
    step_seconds = max(options.step_seconds, runs / STEPS_PER_SECOND)
    delays: list[float] = []
    with ScaleCluster() as cluster:
        print(f"{pods} pods of bare Jobs", flush=True)
        jobs_seconds = steps.burst_of_jobs(cluster, "jobs", pods)
        steps.clear(cluster, "jobs", objects.JOBS, "jobs")
        operator = cluster.start_leader()
        print(f"{runs} runs", flush=True)
        runs_seconds, used = steps.burst_of_runs(cluster, operator, "runs", runs)
        print(f"{options.rest_seconds:.0f} s without a step", flush=True)
        quiet = steps.rest(operator, options.rest_seconds)
        print(f"a step of each run every {step_seconds:g} s, then crashes of trainers", flush=True)

        def crashes() -> None:
            delays.extend(events.crash_delays(cluster, "runs", min(CRASHES, runs), CRASH_PAUSE_SECONDS))

        training = steps.training(cluster, operator, "runs", step_seconds, options.rest_seconds, afterwards=crashes)
        resident = read(operator).resident_bytes
    return {
        "runs": runs,
        "step_seconds": step_seconds,
        "against_jobs": jobs_seconds / runs_seconds,
        "runs_rate": pods / runs_seconds,
        "jobs_rate": pods / jobs_seconds,
        **used.per_run(runs),
        **quiet.rates("quiet"),
        **training,
        "resident_mib": resident / MIB,
        "crashes": len(delays),
        "event_p50": percentile(delays, 50),
        "event_p99": percentile(delays, 99),
    }


SCENARIO = Scenario(
    "1,000 runs at once, compared with as many pods of bare Jobs; events with 1,000 active runs",
    play,
    ROWS,
    runs=1000,
    repeats=3,
    minutes=15,
)
