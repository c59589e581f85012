"""The built-in queue with the operator as a process: places, restarts, and what a waiting run costs."""

import time
from typing import Any

import yaml

from tests.apiserver.rlrun_operator.conftest import RESYNC_SECONDS, WAIT_SECONDS, Bench

APPS, CORE = "apis/apps/v1", "api/v1"
RUNS = "apis/rlrun.dev/v1alpha1"


def limit(bench: Bench, **queue: Any) -> None:
    """The operator that starts next has this queue, and a resync rarer than any wait: only its wake-ups are seen."""
    settings = yaml.safe_load(bench.settings.read_text())
    resync_seconds = 10 * WAIT_SECONDS
    bench.settings.write_text(yaml.safe_dump({**settings, "queue": queue, "resyncSeconds": resync_seconds}))


def started(bench: Bench) -> set[str]:
    return {o["metadata"]["labels"]["rlrun.dev/run"] for o in bench.items(APPS, "replicasets")}


def place(bench: Bench, name: str) -> dict[str, Any]:
    return dict((bench.run(name).get("status") or {}).get("queue") or {})


def create_in_order(bench: Bench, *names: str) -> None:
    """Runs whose times of creation, which have whole seconds, tell their order."""
    for name in names:
        bench.create_run(name)
        time.sleep(1.1)


def test_one_place_goes_from_run_to_run_and_survives_operators(own_bench: Bench) -> None:
    bench = own_bench
    limit(bench, maxRuns=1)
    bench.create_model()
    create_in_order(bench, "first", "second", "third")
    first = bench.start_operator()
    bench.wait("the first place", lambda: started(bench) == {"first"})
    for number, name in enumerate(("second", "third")):
        bench.wait(f"{name} in the queue", lambda name=name: bench.phase(name) == "Queued")
        bench.wait("its number", lambda name=name, number=number: place(bench, name).get("runsAhead") == number)
    assert bench.condition("Admitted", "second")["reason"] == "RunLimitReached"
    assert bench.columns("third")["Ahead"] == 1

    first.kill()
    bench.start_operator()
    bench.change_run("first", suspend=True)
    bench.wait("the next run", lambda: started(bench) == {"second"})
    assert place(bench, "second")["admittedTime"]
    assert not place(bench, "first")
    bench.change_run("first", suspend=False)
    bench.wait("the first run again", lambda: bench.phase("first") == "Queued")

    bench.make_pods("second")
    bench.delete_run("second")
    bench.wait("the end of its workloads", lambda: "second" not in started(bench))
    bench.kill_pods()
    bench.wait("the third run", lambda: started(bench) == {"third"})
    assert bench.phase("first") == "Queued"
    bench.change_run("third", stop=True)
    bench.wait("the first run again", lambda: started(bench) == {"first"})
    assert bench.run("first")["status"]["attempt"] == 2


def test_a_queue_that_does_not_move_writes_nothing(own_bench: Bench) -> None:
    bench = own_bench
    limit(bench, capacity={"cpu": "7"})
    bench.create_model()
    create_in_order(bench, "first", "second", "third")
    bench.start_operator()
    bench.wait("the first place", lambda: started(bench) == {"first"})
    bench.wait("the number of the last", lambda: place(bench, "third").get("runsAhead") == 1)
    # The two that wait are written in any order.
    bench.wait("what the first of them asks for", lambda: place(bench, "second").get("resources"))
    assert place(bench, "second")["resources"] == {"cpu": "6554m"}
    assert bench.condition("Admitted", "second")["reason"] == "WaitingForCapacity"
    bench.wait("its time as the first", lambda: place(bench, "second").get("blockedTime"))

    def versions() -> list[str]:
        return [run["metadata"]["resourceVersion"] for run in bench.items(RUNS, "rlruns")]

    time.sleep(RESYNC_SECONDS)
    before = versions()
    time.sleep(RESYNC_SECONDS)
    assert versions() == before
    events = [e for e in bench.items(CORE, "events") if e["involvedObject"]["name"] == "third"]
    assert [(e["reason"], e["type"]) for e in events] == [("Queued", "Normal")]
