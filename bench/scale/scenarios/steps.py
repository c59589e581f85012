"""Parts of scenarios: bursts, quiet runs, training runs, and operator starts."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from kubernetes import client
from rlrun.constants import RUN_LABEL

from bench.repetitions import percentile
from bench.scale.scenarios.delays import StepDelays
from bench.scale.scenarios.scenario import MIB
from bench.scale.testbed import objects
from bench.scale.testbed.cluster import DEADLINE_SECONDS, OperatorProcess, ScaleCluster, wait_for
from bench.scale.testbed.event_watch import EventWatch, NewPods
from bench.scale.testbed.objects import PODS_PER_RUN
from bench.scale.testbed.readings import Reading, read

PRESSURE_SECONDS = 20.0
"""Seconds for which the operator must keep its Lease while other processes use all cores."""
SETTLED_SECONDS = 10.0
SETTLED_REQUESTS = 3.0
"""Maximum requests per second of an idle operator."""


def create_namespaces(cluster: ScaleCluster, prefix: str) -> None:
    """Create the tenants' namespaces."""
    cluster.bulk.send(objects.new_namespaces(objects.namespaces(prefix)))


def burst_of_jobs(
    cluster: ScaleCluster, prefix: str, pods: int, specs: Sequence[dict[str, Any]] = (objects.TINY_POD,)
) -> float:
    """Return the seconds from the first creation until `pods` pods of bare Jobs run. The Jobs use `specs` in turn."""
    return _burst(cluster, prefix, objects.jobs(prefix, pods, specs), pods)


def pods_of_run(cluster: ScaleCluster, namespace: str, name: str) -> list[dict[str, Any]]:
    """Return the pod specs in the templates of a run's ReplicaSets and Job."""
    selector = f"{RUN_LABEL}={name}"
    made = client.AppsV1Api(cluster.api).list_namespaced_replica_set(namespace, label_selector=selector).items
    made += client.BatchV1Api(cluster.api).list_namespaced_job(namespace, label_selector=selector).items
    return [cluster.api.sanitize_for_serialization(owner.spec.template.spec) for owner in made]


def burst_of_runs(
    cluster: ScaleCluster, operator: OperatorProcess, prefix: str, runs: int, phase: str = "Running"
) -> tuple[float, Reading]:
    """Create runs at once, and wait until their pods are in this phase and the operator is quiet.

    Returns the seconds from the first creation until all pods are in the phase, and the work of the operator until it
    was quiet.
    """
    before = read(operator)
    chains = objects.runs(prefix, runs)
    seconds = _burst(cluster, prefix, chains, PODS_PER_RUN * runs, phase, operator.require_running)
    return seconds, wait_until_settled(operator).since(before)


def _burst(
    cluster: ScaleCluster,
    prefix: str,
    chains: objects.Chains,
    pods: int,
    phase: str = "Running",
    works: Callable[[], bool] = lambda: True,
) -> float:
    """Return the seconds from the first creation until `pods` pods are in a phase.

    `works` is called during the wait, and raises if the phase can no longer be reached.
    """
    create_namespaces(cluster, prefix)
    with NewPods(cluster.api, phase) as found:
        began = time.time()
        cluster.bulk.send(chains)
        print(f"    created within {time.time() - began:.1f} s", flush=True)
        wait_for(f"{pods} pods {phase}", lambda: works() and found.count >= pods, shown=lambda: found.count)
    return found.last - began


def finished_template(cluster: ScaleCluster, operator: OperatorProcess) -> dict[str, Any]:
    """Create a run, stop it, and wait until the operator has no work left for it. Returns the run after deleting it."""
    runs, place, name = client.CustomObjectsApi(cluster.api), "template", objects.run(0)["metadata"]["name"]
    cluster.bulk.send(objects.new_namespaces([place]))
    runs.create_namespaced_custom_object(*objects.RUNS, place, "rlruns", objects.run(0))

    def phase() -> str:
        found = runs.get_namespaced_custom_object(*objects.RUNS, place, "rlruns", name)
        return str((found.get("status") or {}).get("phase"))

    wait_for("the run to end", lambda: phase() == "Running", shown=phase)
    changes = {"spec": {"stop": True}}
    runs.patch_namespaced_custom_object(*objects.RUNS, place, "rlruns", name, changes)
    wait_for("its end", lambda: phase() == "Stopped", shown=phase)
    wait_until_settled(operator)
    found: dict[str, Any] = runs.get_namespaced_custom_object(*objects.RUNS, place, "rlruns", name)
    runs.delete_namespaced_custom_object(*objects.RUNS, place, "rlruns", name)
    wait_until_settled(operator)
    return found


def wait_for_count_of_runs(cluster: ScaleCluster, runs: int) -> None:
    """Wait until the RLModel's status says that `runs` runs use it."""
    models, name = client.CustomObjectsApi(cluster.api), objects.model()["metadata"]["name"]

    def count() -> int:
        found = models.get_cluster_custom_object(*objects.RUNS, "rlmodels", name)
        return int((found.get("status") or {}).get("runs") or 0)

    wait_for("the number of runs in the status of the RLModel", lambda: count() == runs, pause=2.0, shown=count)


def clear(cluster: ScaleCluster, prefix: str, api: str, plural: str) -> None:
    """Delete all objects of a kind in the tenants' namespaces, and wait until their pods are gone."""
    cluster.bulk.send(objects.deletions(prefix, api, plural))
    places = objects.namespaces(prefix)

    def pods() -> int:
        return sum(cluster.count(f"/api/v1/namespaces/{place}/pods") for place in places)

    wait_for(f"the end of the pods of {plural}", lambda: not pods(), pause=2.0, shown=pods)
    kinds = ((objects.JOBS, "jobs"), (api, plural))
    left = [f"/{group}/namespaces/{place}/{kind}" for group, kind in kinds for place in places]
    wait_for(f"the end of {plural}", lambda: not any(cluster.count(path) for path in left), pause=2.0)


def rest(operator: OperatorProcess, seconds: float) -> Reading:
    """Return the operator's work during an idle period of `seconds`."""
    before = read(operator)
    time.sleep(seconds)
    return read(operator).since(before)


def training(
    cluster: ScaleCluster,
    operator: OperatorProcess,
    prefix: str,
    step_seconds: float,
    seconds: float,
    afterwards: Callable[[], object] = lambda: None,
) -> dict[str, float]:
    """Make all runs execute steps for some time, and return the figures of the delays and the operator's work.

    The delays are those of the runs in the first namespace. `afterwards` is called after the measurement, while the
    runs make steps.

    Raises SystemExit if no status showed any step of these runs.
    """
    place = objects.namespaces(prefix)[0]
    found: StepDelays | None = None

    def on_event(_: str, run: dict[str, Any], now: float) -> None:
        step = int(((run.get("status") or {}).get("progress") or {}).get("step") or 0)
        if found is not None:
            found.show(f"{place}/{run['metadata']['name']}", step, now)

    with EventWatch(cluster.api, f"/apis/rlrun.dev/v1alpha1/namespaces/{place}/rlruns", on_event):
        pace = cluster.set_pace(step_seconds)
        # Start when all runs have made their first step.
        time.sleep(step_seconds)
        before, found = read(operator), StepDelays(pace, time.time())
        time.sleep(seconds)
        used, delays = read(operator).since(before), found.until(time.time())
        afterwards()
    if not delays:
        raise SystemExit(f"no step of {seconds:.0f} s was shown in the status of any run of {place}")
    cluster.set_pace(0, first=found.highest)
    return {"step_p50": percentile(delays, 50), "step_p99": percentile(delays, 99), **used.rates("training")}


def take_over(cluster: ScaleCluster, leader: OperatorProcess, active: int) -> tuple[OperatorProcess, dict[str, float]]:
    """Kill the operator while another one is on standby and other processes use all cores.

    The other processes are killed when the successor has the Lease. Returns the successor and the figures of its start.
    """
    operator = cluster.start_operator()
    wait_for("a standby operator", operator.is_serving, pause=0.1)
    with busy_cores():
        time.sleep(PRESSURE_SECONDS)
        if not leader.is_ready():
            raise SystemExit("the operator lost the Lease because other processes wanted all cores")
        leader.kill()
        began = time.monotonic()
        wait_for("the operator to get the Lease", operator.is_ready, pause=0.1)
        takeover = time.monotonic() - began
    before = read(operator)
    after = wait_until_looked(operator, active + before.looks)
    figures = {"takeover_seconds": takeover, "start_seconds": after.at - before.at}
    return operator, figures | {"start_resident_mib": after.resident_bytes / MIB}


def wait_until_looked(operator: OperatorProcess, runs: float) -> Reading:
    """Wait until an operator has made `runs` reconciliations and none is pending. Returns its counters."""
    reading = read(operator)

    def has_looked() -> bool:
        nonlocal reading
        reading = read(operator)
        return reading.looks >= runs and not reading.waiting

    wait_for(f"reconciliation of {runs:.0f} runs", has_looked, pause=0.1, shown=lambda: reading.looks)
    return reading


@contextmanager
def busy_cores() -> Iterator[None]:
    """Context in which one process per core computes without pause."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait(30)


def wait_until_settled(operator: OperatorProcess, seconds: float = DEADLINE_SECONDS) -> Reading:
    """Wait until the operator makes only requests that are shared by all runs. Returns its counters.

    Raises SystemExit after `seconds`.
    """
    reading = read(operator)

    def is_quiet() -> bool:
        nonlocal reading
        time.sleep(SETTLED_SECONDS)
        last, reading = reading, read(operator)
        return not reading.waiting and reading.requests - last.requests <= SETTLED_REQUESTS * SETTLED_SECONDS

    wait_for("a quiet operator", is_quiet, seconds, shown=lambda: f"{reading.looks:.0f} looks")
    return reading
