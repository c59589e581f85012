"""Scenario `gaps`: a proxy ends all watches of the operator and rejects new watches for some seconds."""

import re
import time
from collections.abc import Iterable
from typing import Literal

from bench.report import at_most
from bench.scale.scenarios import events, steps
from bench.scale.scenarios.delays import EventDelays
from bench.scale.scenarios.scenario import FigureRow, Figures, Options, Scenario
from bench.scale.testbed import objects
from bench.scale.testbed.bulk import Call
from bench.scale.testbed.cluster import OperatorProcess, ScaleCluster, wait_for
from bench.scale.testbed.event_watch import NewPods
from tests.support.api_proxy import Answer, Proxy, Request, passes, running

CHANGED = "changed"
"""Namespace of the runs that change. In each gap, one of them is stopped and one has a crash."""
CHANGES = 4
WRITES = ("POST", "PUT", "PATCH", "DELETE")
REVIEWS = ("/selfsubjectaccessreviews", "/selfsubjectrulesreviews", "/tokenreviews")
"""Suffixes of the paths of POST requests that write nothing."""
MODEL_STATUS = re.compile(r"/rlmodels/[^/]+/status")
"""Path of an RLModel's status, which has the number of runs that use it."""
How = Literal["cut", "gone"]

WHAT = "{runs} runs, {gap_seconds:g} s without watches "
SHOWN = "from their end until the statuses show the changes"
NOTE = "change of a run {%s_run_seconds:.2f} s, of a pod {%s_pod_seconds:.2f} s; {%s_requests} requests"
ROWS = (
    FigureRow(
        "gap of cut watches to status",
        WHAT + "(connections closed): " + SHOWN,
        "cut_seconds",
        "s",
        at_most(3.0),
        NOTE.replace("%s", "cut") + "; {control_plane}",
    ),
    FigureRow(
        "gap of watches answered with 410 to status",
        WHAT + "(an event with 410): " + SHOWN,
        "gone_seconds",
        "s",
        at_most(3.0),
        NOTE.replace("%s", "gone"),
    ),
    FigureRow(
        "gap needless writes",
        WHAT + "(both ways): writes to runs that did not change",
        "needless",
        "writes",
        at_most(0),
        "{needless_writes}",
    ),
)


def play(options: Options) -> Figures:
    """Play both gaps on one cluster, each with its own two runs that change."""
    with ScaleCluster() as cluster, running(cluster.control_plane.kubeconfig) as proxy:
        operator = cluster.start_leader(kubeconfig=str(proxy.kubeconfig(cluster.folder / "proxy.kubeconfig")))
        print(f"{options.runs} runs that do not change", flush=True)
        steps.burst_of_runs(cluster, operator, "runs", options.runs)
        _start_changed(cluster, operator)
        print(f"{options.gap_seconds:g} s without watches: connections closed", flush=True)
        cut, needless = _gap(cluster, operator, proxy, options.gap_seconds, "cut", (0, 1))
        print(f"{options.gap_seconds:g} s without watches: status 410", flush=True)
        gone, more = _gap(cluster, operator, proxy, options.gap_seconds, "gone", (2, 3))
        operator.kill()
    return {
        "runs": options.runs,
        "gap_seconds": options.gap_seconds,
        **cut,
        **gone,
        "needless": len(needless) + len(more),
        "needless_writes": "; ".join(sorted({*needless, *more})[:5]) or "none",
    }


def needless_writes(requests: Iterable[Request], changed: str) -> list[str]:
    """Return the writes outside the namespace with the changed runs, excluding renewals of the Lease.

    One write of the RLModel's status is needed, because a stopped run is not counted.
    """
    found = [
        f"{request.method} {request.path}"
        for request in requests
        if request.method in WRITES
        and not request.lease
        and not request.path.endswith(REVIEWS)
        and f"/namespaces/{changed}/" not in f"{request.path}/"
    ]
    needed = next((index for index, call in enumerate(found) if MODEL_STATUS.search(call)), len(found))
    return found[:needed] + found[needed + 1 :]


def _start_changed(cluster: ScaleCluster, operator: OperatorProcess) -> None:
    """Create the runs that will change, and wait until they run."""
    path = f"/{objects.RLRUNS}/namespaces/{CHANGED}/rlruns"
    cluster.bulk.send(objects.new_namespaces([CHANGED]))
    with NewPods(cluster.api, "Running") as pods:
        cluster.bulk.send([Call("POST", path, objects.run(number))] for number in range(CHANGES))
        wait_for("the pods of the runs that change", lambda: pods.count >= CHANGES * objects.PODS_PER_RUN)
    steps.wait_until_settled(operator)


def _gap(
    cluster: ScaleCluster,
    operator: OperatorProcess,
    proxy: Proxy,
    seconds: float,
    how: How,
    changed: tuple[int, int],
) -> tuple[Figures, list[str]]:
    """Return the figures of a gap, and the writes in the gap that no change required."""
    to_stop, to_crash = (f"run-{number}" for number in changed)
    pod = events.trainer_pods(cluster, CHANGED)[to_crash]
    shown = EventDelays()

    def on_status(run: str, status: events.Status, now: float) -> None:
        if run.endswith(f"/{to_stop}") and status.get("phase") == "Stopped":
            shown.show(to_stop, now)
        if run.endswith(f"/{to_crash}") and status.get("restarts"):
            shown.show(to_crash, now)

    refused = Answer(drop=how == "cut", gone=how == "gone")
    with events.follow(cluster, CHANGED, on_status):
        first = len(proxy.requests)
        proxy.decide = lambda request: refused if request.watch else Answer()
        if not proxy.end_watches(how):
            raise SystemExit("the operator had no watch that could be ended")
        time.sleep(seconds / 2)
        shown.cause(to_stop, events.stop(cluster, CHANGED, to_stop))
        shown.cause(to_crash, events.crash(cluster, CHANGED, pod))
        time.sleep(seconds / 2)
        proxy.decide = passes
        ended = time.time()
        wait_for(
            "the changes in the statuses",
            lambda: operator.require_running() and not shown.missing,
            events.SHOWN_SECONDS,
            0.05,
            shown=lambda: f"{shown.missing} missing",
        )
        delays = shown.since(ended)
    steps.wait_until_settled(operator)
    requests = proxy.requests[first:]
    figures = {
        f"{how}_seconds": max(delays[to_stop], delays[to_crash]),
        f"{how}_run_seconds": delays[to_stop],
        f"{how}_pod_seconds": delays[to_crash],
        f"{how}_requests": len(requests),
    }
    return figures, needless_writes(requests, CHANGED)


SCENARIO = Scenario(
    "changes while all watches are cut, and while they end with 410; needless writes",
    play,
    ROWS,
    runs=100,
    repeats=3,
    minutes=4,
)
