"""Scenario `lifecycle`: 100 runs start, are quiet and train, and another operator takes over."""

import time

from bench.report import at_least, at_most
from bench.scale.scenarios import steps
from bench.scale.scenarios.scenario import HIGHER, MIB, FigureRow, Figures, Options, Scenario
from bench.scale.testbed import objects
from bench.scale.testbed.bulk import BulkClient
from bench.scale.testbed.cluster import ScaleCluster
from bench.scale.testbed.readings import read_api_server
from tests.support.api_address import api_address

WAITING_RUNS = 100
STATUS_SECONDS = 5.0
"""Seconds that the controllers get to write their statuses after the last pod runs."""
FINISHED_AT_ONCE = 4
"""Number of finished runs that are created at a time. It is small, so that the operator sees no run without its
status.
"""

ROWS = (
    FigureRow(
        "pods of runs",
        "{runs} runs created at once: running pods per second / the same number of pods of bare Jobs",
        "against_jobs",
        "x",
        at_least(0.5),
        "{runs_rate:.1f} and {jobs_rate:.1f} pods/s; {control_plane}",
        HIGHER,
    ),
    FigureRow(
        "pods of runs against Jobs of their templates",
        "{runs} runs created at once: running pods per second / the same number of pods of Jobs with the templates of "
        "a run",
        "against_alike",
        "x",
        at_least(0.55),
        "{runs_rate:.1f} and {alike_rate:.1f} pods/s; {control_plane}",
        HIGHER,
    ),
    FigureRow(
        "requests of a new run",
        "requests of the operator to the API server until a run trains",
        "requests_of_a_run",
        "requests",
        note="{cpu_ms_of_a_run:.0f} ms CPU of the operator, {looks_of_a_run:.1f} looks",
    ),
    FigureRow(
        "API server's requests of a new run",
        "requests of all clients for a new run / those for 4 pods of bare Jobs, which a run has too",
        "api_server_ratio",
        "x",
        note="{api_server_runs:.0f} and {api_server_jobs:.0f} requests; {api_server_ms_runs:.0f} and "
        "{api_server_ms_jobs:.0f} ms CPU of the API server",
    ),
    FigureRow(
        "requests of quiet runs",
        "{runs} runs that train, while none makes a step: requests per second, with those for the Lease",
        "quiet_requests",
        "requests/s",
        at_most(2.0),
        "{quiet_writes:.0f} writes, {quiet_listings:.0f} lists of S3, {quiet_cpu_seconds:.3f} cores",
    ),
    FigureRow(
        "step to status",
        "{runs} runs with a step every {step_seconds:g} s each: from a step to its status in a watch, p99",
        "step_p99",
        "s",
        at_most(1.0),
        "p50 {step_p50:.2f} s; {training_requests:.1f} requests/s and {training_cpu_seconds:.2f} cores",
    ),
    FigureRow(
        "memory",
        "{runs} runs that train: resident memory of the operator",
        "resident_mib",
        "MiB",
        at_most(230.0),
        "{cache_kib_per_run:.1f} KiB of stored objects for each run",
    ),
    FigureRow(
        "takeover",
        "{runs} active and {finished} finished runs, all cores wanted by other processes: from kill -9 of the operator "
        "until the one that stands by has the Lease",
        "takeover_seconds",
        "s",
        at_most(20.0),
        "Lease of 15 s; its holder kept it for 20 s beside these processes",
    ),
    FigureRow(
        "start of an operator",
        "{runs} active and {finished} finished runs: from the Lease until all active ones were looked at",
        "start_seconds",
        "s",
        at_most(30.0),
        "{start_resident_mib:.0f} MiB; the aim is meant for 10,000 runs",
    ),
    FigureRow(
        "requests of waiting runs",
        f"{WAITING_RUNS} runs without a node for their pods: requests per second, with those for the Lease",
        "waiting_requests",
        "requests/s",
        at_most(2.0),
        "{waiting_looks:.1f} looks per second, {waiting_cpu_seconds:.3f} cores",
    ),
)


def play(options: Options) -> Figures:
    """Play all parts on a new cluster, in which the objects of earlier parts remain."""
    runs, finished = options.runs, options.finished
    pods = objects.PODS_PER_RUN * runs
    with ScaleCluster() as cluster:
        operator = cluster.start_leader()
        print(f"{pods} pods of bare Jobs", flush=True)
        idle = read_api_server(cluster.api)
        jobs_seconds = steps.burst_of_jobs(cluster, "jobs", pods)
        time.sleep(STATUS_SECONDS)
        after_jobs = read_api_server(cluster.api)
        print(f"{runs} runs", flush=True)
        runs_seconds, used = steps.burst_of_runs(cluster, operator, "runs", runs)
        after_runs = read_api_server(cluster.api)
        print(f"{pods} pods of Jobs with the templates of a run", flush=True)
        templates = steps.pods_of_run(cluster, "runs-0", objects.run(0)["metadata"]["name"])
        alike_seconds = steps.burst_of_jobs(cluster, "alike", pods, [objects.pod_of_job(pod) for pod in templates])
        steps.clear(cluster, "alike", objects.JOBS, "jobs")
        print(f"{options.rest_seconds:.0f} s without a step", flush=True)
        quiet = steps.rest(operator, options.rest_seconds)
        print(f"a step of each run every {options.step_seconds:g} s", flush=True)
        training = steps.training(cluster, operator, "runs", options.step_seconds, options.rest_seconds)
        after = steps.wait_until_settled(operator)
        print(f"another operator takes over, with {finished} finished runs more", flush=True)
        template = steps.finished_template(cluster, operator)
        steps.create_namespaces(cluster, "finished")
        few = BulkClient(*api_address(cluster.control_plane.kubeconfig), at_once=FINISHED_AT_ONCE)
        few.send(objects.finished_runs("finished", finished, template))
        operator, start = steps.take_over(cluster, operator, runs)
        # The operator reconciles the finished runs one after another.
        steps.wait_until_settled(operator)
        print(f"{WAITING_RUNS} runs without a node", flush=True)
        cluster.set_schedulable(False)
        steps.burst_of_runs(cluster, operator, "waiting", WAITING_RUNS, "Pending")
        waiting = steps.rest(operator, options.rest_seconds)
    of_jobs, of_runs = after_jobs.since(idle), after_runs.since(after_jobs)
    return {
        "runs": runs,
        "finished": finished,
        "step_seconds": options.step_seconds,
        "against_jobs": jobs_seconds / runs_seconds,
        "against_alike": alike_seconds / runs_seconds,
        "runs_rate": pods / runs_seconds,
        "jobs_rate": pods / jobs_seconds,
        "alike_rate": pods / alike_seconds,
        **used.per_run(runs),
        "api_server_ratio": of_runs.requests / of_jobs.requests,
        "api_server_runs": of_runs.requests / runs,
        "api_server_jobs": of_jobs.requests / runs,
        "api_server_ms_runs": 1000 * of_runs.cpu_seconds / runs,
        "api_server_ms_jobs": 1000 * of_jobs.cpu_seconds / runs,
        **quiet.rates("quiet"),
        **training,
        "resident_mib": after.resident_bytes / MIB,
        "cache_kib_per_run": after.cache_bytes / 2**10 / runs,
        **start,
        **waiting.rates("waiting"),
    }


SCENARIO = Scenario(
    "runs start, are quiet and train; another operator takes over; runs wait for a node",
    play,
    ROWS,
    runs=100,
    finished=400,
    repeats=3,
    minutes=7,
)
