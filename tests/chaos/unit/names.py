"""A run is deleted and created again without an operator; a checkpoint expires while another run starts from it."""

from collections.abc import Callable, Coroutine, Iterator
from typing import Any

from tests.chaos import invariants
from tests.chaos.invariants import Expected
from tests.chaos.scenario import Lost, NotStruck, Scenario, require
from tests.chaos.unit.life import NAME, NAMESPACE, Event, Life, check_end, kept, usual_events
from tests.support.cluster_objects import run_object
from tests.support.fake_cluster import Crash


def scenarios() -> Iterator[Scenario]:
    """Both policies, at several moments of the first run's life."""
    for policy in ("Retain", "Delete"):
        for tick in (2, 4, 7, 10, 13):
            yield Scenario(f"run-made-anew-while-operator-is-away/{policy}-{tick:02d}", "unit", made_anew(policy, tick))
    for keep in (1, 2):
        yield Scenario(f"retention-beside-a-warm-start/keep-{keep}", "unit", warm_start(keep))


def made_anew(policy: str, tick: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """The operator dies, the user deletes the run and applies it again, and only then is there an operator."""

    async def play(_: Any) -> None:
        life = Life(spec={"artifactPolicy": policy})
        life.events = usual_events()[:1]
        await life.live(lambda life: life.now >= tick)
        first_root = life.root

        life.operator = Absent()  # type: ignore[assignment]
        life.delete()
        await life.settle(3)
        if not (life.run or {}).get("metadata", {}).get("finalizers"):
            if life.run is not None:
                raise Lost("a run without a finalizer outlives its deletion")
            life.uid = "uid-2"
            life.create()
            await life.settle(2)
            life.start_operator()
        else:
            # With its finalizer the name is not free before the operator has been there.
            life.start_operator()
            await life.live(lambda life: life.run is None)
            life.uid = "uid-2"
            life.create()
        life._trainer = None
        life.step = 0
        life.events = usual_events()[-1:]
        await life.live()
        check_end(life, {"Completed": ["Completed"]}, Expected(restarts=0, run_restarts=0, attempts=1))
        seen = life.picture()
        if policy == "Delete":
            require(invariants.left_after_deletion(seen, first_root))

    return play


class Absent:
    """No operator."""

    async def reconcile(self, _: Any) -> None:
        """The operator does not run."""


def warm_start(keep: int) -> Callable[[Any], Coroutine[Any, Any, None]]:
    """Another run waits to start from the first checkpoint; retention would have it deleted long before."""

    async def play(_: Any) -> None:
        life = Life(spec={"checkpoints": {"interval": 1, "keepCloud": keep}}, checkpoint_every=1)

        first_step = 0

        def start_another(life: Life) -> None:
            nonlocal first_step
            checkpoint = life.cluster.all("RLCheckpoint")[0]
            source, first_step = checkpoint["metadata"]["name"], int(checkpoint["spec"]["step"])
            other = run_object("follower", NAMESPACE, "uid-follower", checkpointId=source)
            life.cluster.put({**other, "status": {"phase": "Pending", "attempt": 1}})

        follows = Event(lambda life: bool(life.cluster.all("RLCheckpoint")), start_another)
        life.events = usual_events(follows)[:-1]
        await life.live(lambda life: life.phase == "Completed")
        await life.settle(2)
        follower = life.cluster.find("RLRun", "follower")
        if follower is None:
            raise NotStruck("no run starts from a checkpoint")
        life.look_back()
        require(kept(life, life.picture(), needed=[first_step]))
        # When the other run has ended, the checkpoint is one of many again.
        life.cluster.put({**follower, "status": {**follower["status"], "phase": "Completed"}})
        await life.settle(3)
        require(kept(life, life.picture()))

    return play


__all__ = ["NAME", "Crash", "scenarios"]
