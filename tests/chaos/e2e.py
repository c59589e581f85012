"""Real runs of the tiny model on the local cluster, each of them hurt once, or twice at the same time.

Every story is the same: a run of a few steps with a checkpoint at every second one; at a random moment (by the seed)
something breaks; the run completes, nothing that is Ready is partial, retention kept what it had to keep, no step's
metrics are missing, and after the run's deletion nothing of it is left.
"""

import random
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

from tests.chaos import cluster_faults as faults
from tests.chaos.cluster_run import INTERVAL, NAME, STEPS, ClusterRun
from tests.chaos.scenario import Scenario, require_strike
from tests.e2e.conftest import Platform

SECONDS = 420.0
"""Deadline of a scenario: start of the pods, the run, the fault, the end."""
STEP_SECONDS = 1.5
"""About the length of a step: strikes fall anywhere within one."""

Strike = Callable[[ClusterRun, random.Random], None]


def scenarios(seed: int) -> Iterator[Scenario]:
    """All scenarios of the level; the step of the fault is drawn with the seed of the scenario."""
    stories: dict[str, Callable[[int], Callable[[Any], None]]] = {
        **{f"kill-9/{name}": hurt(killing(name)) for name in faults.PROCESSES},
        "kill-9/operator": hurt(lambda run, _: faults.kill_operator(run.platform)),
        **{f"pod-deleted/{role}": hurt(deleting(role)) for role in ROLES},
        "pod-deleted/operator": hurt(lambda run, _: faults.delete_operator_pod(run.platform)),
        "pod-deleted/all-at-once": hurt(everything),
        "node-drained/all-pods": hurt(lambda run, _: faults.evict_all(run)),
        "s3-down/30-seconds-in-mid-run": hurt(s3_for(30.0)),
        "s3-down/at-the-end": hurt(s3_for(45.0), step=STEPS - 2),
        "s3-down/at-the-start": begun_while(faults.s3_away),
        "s3-down/orchestrator-killed-while-uploads-wait": hurt(orchestrator_killed_with_its_spool),
        "s3-down/trainer-killed-while-uploads-wait": hurt(s3_for(25.0, killing("trainer"))),
        "s3-down/operator-killed-at-the-end": hurt(s3_for(40.0, operator_killed), step=STEPS - 2),
        "s3-down/run-deleted-meanwhile": deleted_while_s3_is_down,
        "api-server-restarted/at-once": hurt(lambda run, _: faults.restart_api_server(0.0)),
        "api-server-restarted/after-15-seconds": hurt(lambda run, _: faults.restart_api_server(15.0)),
        "operator-away/20-seconds": hurt(operator_away(20.0)),
        "operator-away/while-the-run-ends": hurt(operator_away(30.0), step=STEPS - 2),
        "operator-away/while-the-trainer-dies": hurt(operator_away(15.0, killing("trainer"))),
        "disk-full/trainer": hurt(disk_full),
        "paused/while-a-step-runs": hurt(paused, attempts=2),
        "two-at-once/trainer-and-orchestrator": hurt(both("trainer", "orchestrator")),
        "two-at-once/engine-and-trainer": hurt(both("engine", "trainer")),
        "kill-9/engine-in-a-call": hurt(lambda run, _: faults.kill_engine_in_a_call(run)),
        "kill-9/storage-server": hurt(lambda run, _: faults.kill_storage_server(run.platform)),
        "storage-server-down/30-seconds-in-mid-run": hurt(storage_server_for(30.0)),
        "storage-server-down/at-the-end": hurt(storage_server_for(45.0), step=STEPS - 2),
        "storage-server-down/at-the-start": begun_while(faults.storage_server_away),
        "storage-server-down/trainer-killed-while-uploads-wait": hurt(storage_server_for(25.0, killing("trainer"))),
        "storage-server-down/engine-killed-meanwhile": hurt(storage_server_for(25.0, killing("engine"))),
    }
    for i, (name, story) in enumerate(stories.items()):
        yield Scenario(name, "e2e", story(seed + i), seed + i, SECONDS)


ROLES = ("trainer", "inference", "environment", "orchestrator")


def hurt(
    strike: Strike, *, step: int | None = None, attempts: int | None = None
) -> Callable[[int], Callable[[Any], None]]:
    """A scenario by seed: a fault is injected after `step` (None: a random one), and the run survives."""

    def by_seed(seed: int) -> Callable[[Any], None]:
        def play(platform: Platform) -> None:
            dice = random.Random(seed)
            run = ClusterRun.begin(platform, seed=seed)
            try:
                run.wait_for_step(dice.randint(1, STEPS // 2) if step is None else step)
                time.sleep(dice.random() * STEP_SECONDS)
                strike(run, dice)
                run.survive(attempts=attempts)
            finally:
                run.clean_up()

        return play

    return by_seed


def killing(name: str) -> Strike:
    """kill -9 of one process."""
    return lambda run, _: faults.kill_process(run, name)


def deleting(role: str) -> Strike:
    """Delete one pod of the role."""
    return lambda run, _: faults.delete_pod(run, role)


def everything(run: ClusterRun, _: random.Random) -> None:
    """Delete all pods at once, without a grace period."""
    require_strike(bool(run.pods()), "all pods are deleted")
    run.platform.kubectl(
        "delete",
        "pods",
        "-n",
        run.namespace,
        "-l",
        f"rlrun.dev/run={NAME}",
        "--grace-period=0",
        "--force",
        "--wait=false",
    )


def both(first: str, second: str) -> Strike:
    """Two processes, one after the other, within a second."""

    def strike(run: ClusterRun, dice: random.Random) -> None:
        faults.kill_process(run, first)
        time.sleep(dice.random())
        faults.kill_process(run, second)

    return strike


def s3_for(seconds: float, meanwhile: Strike | None = None) -> Strike:
    """No S3 for so long; half way through something else may break as well."""

    def strike(run: ClusterRun, dice: random.Random) -> None:
        with faults.s3_away(run.platform):
            time.sleep(seconds / 2)
            if meanwhile is not None:
                meanwhile(run, dice)
            time.sleep(seconds / 2)

    return strike


def storage_server_for(seconds: float, meanwhile: Strike | None = None) -> Strike:
    """No rlrun-server for so long; half way through something else may break as well."""

    def strike(run: ClusterRun, dice: random.Random) -> None:
        with faults.storage_server_away(run.platform):
            time.sleep(seconds / 2)
            if meanwhile is not None:
                meanwhile(run, dice)
            time.sleep(seconds / 2)

    return strike


def orchestrator_killed_with_its_spool(run: ClusterRun, dice: random.Random) -> None:
    """What waits on its disk for S3 goes with its pod: the metrics of the steps in between, and of no others."""
    run.unsaid_after = run.step()
    s3_for(25.0, killing("orchestrator"))(run, dice)


def operator_killed(run: ClusterRun, _: random.Random) -> None:
    """The operator's process dies."""
    faults.kill_operator(run.platform)


def operator_away(seconds: float, meanwhile: Strike | None = None) -> Strike:
    """Scaled to 0 and back."""

    def strike(run: ClusterRun, dice: random.Random) -> None:
        with faults.operator_away(run.platform):
            time.sleep(seconds / 2)
            if meanwhile is not None:
                meanwhile(run, dice)
            time.sleep(seconds / 2)

    return strike


def disk_full(run: ClusterRun, _: random.Random) -> None:
    """Until a checkpoint has had to be made in it."""
    with faults.disk_full(run):
        time.sleep(INTERVAL * STEP_SECONDS + 10.0)


def paused(run: ClusterRun, _: random.Random) -> None:
    """Suspended in the middle of a step, resumed when all pods are gone."""
    run.change('{"spec": {"suspend": true}}')
    run.wait_for_phase("Suspended", 60)
    run.wait_for("the end of all pods", lambda: not run.pods(), 120)
    run.change('{"spec": {"suspend": false}}')


def begun_while(away: Callable[[Platform], AbstractContextManager[None]]) -> Callable[[int], Callable[[Any], None]]:
    """Apply the run while something is away: neither its model nor its environment can be read."""

    def by_seed(seed: int) -> Callable[[Any], None]:
        def play(platform: Platform) -> None:
            run: ClusterRun | None = None
            try:
                with away(platform):
                    run = ClusterRun.begin(platform, seed=seed)
                    time.sleep(30)
                run.survive()
            finally:
                if run is not None:
                    run.clean_up()

        return play

    return by_seed


def deleted_while_s3_is_down(seed: int) -> Callable[[Any], None]:
    """`kubectl delete` of a run that takes its files along: it waits for S3, and then goes with all of them."""

    def play(platform: Platform) -> None:
        run = ClusterRun.begin(platform, seed=seed, maxSteps=1000)
        try:
            run.wait_for_step(random.Random(seed).randint(2, 5))
            with faults.s3_away(platform):
                platform.kubectl("delete", "rlrun", NAME, "-n", run.namespace, "--wait=false")
                time.sleep(20)
            run.check_removed()
        finally:
            run.clean_up()

    return play
