"""The built-in queue: no more runs than places, whatever happens to the operator, the runs and the settings."""

import random
from typing import Any

import pytest
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.requests import KubeRequest
from rlrun_operator.controller.admission_queue import OFFER_SECONDS
from rlrun_operator.planning.observation import Admitted, RunKey

from tests.support.cluster_objects import model_object, run_object
from tests.support.expectations import present
from tests.support.fake_cluster import Crash
from tests.support.fake_kubelet import crash_container, end_orchestrator
from tests.support.queued_runs import QueuedRuns, with_gpus, work_in_disorder

GPU = "nvidia.com/gpu"
ONE_PLACE = {"maxRuns": 1}
OWN_CAPACITY = {"namespaces": {name: {"capacity": {GPU: "5"}} for name in ("team", "other")}}


async def two_runs(**queue: Any) -> QueuedRuns:
    """`first` has the place, `second` waits for it."""
    runs = QueuedRuns(**(queue or ONE_PLACE))
    await runs.arrive("first", "second")
    runs.start_pods()
    await runs.settle()
    assert runs.phases("first", "second") == ["Pending", "Queued"]
    assert runs.started() == {"first"}
    return runs


async def test_runs_start_in_their_order_and_the_others_are_queued() -> None:
    runs = QueuedRuns(maxRuns=2)
    runs.add("a", "b", "c", "d")
    assert await runs.look_at("d", "c", "b", "a") == ["Pending", "Pending", "Queued", "Queued"]
    assert (runs.place("a")["runsAhead"], runs.place("b")["runsAhead"]) == (0, 0)
    await runs.settle()
    assert (runs.place("a")["runsAhead"], runs.place("b")["runsAhead"]) == (0, 1)
    assert runs.status("b")["reason"] == "RunLimitReached"
    assert "at most 2 runs may have pods at a time" in runs.status("b")["message"]


async def test_without_limits_everything_starts_at_once() -> None:
    runs = QueuedRuns()
    await runs.arrive("a", "b", "c")
    assert runs.started() == {"a", "b", "c"}
    assert not runs.place("a")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("queue", [{"maxRuns": 2}, {"maxRunsPerNamespace": 1}, {"capacity": {GPU: "8"}}, OWN_CAPACITY])
async def test_workers_at_the_same_time_never_give_one_place_twice(queue: dict[str, Any], seed: int) -> None:
    chance = random.Random(seed)
    runs = QueuedRuns(model=with_gpus(3, 1), **queue)
    for name in "abcdef":
        runs.add(name, namespace=chance.choice(["team", "other"]))
    for _ in range(6):
        await work_in_disorder(runs, chance, workers=4, looks=5, faults=0.05)
        started = {
            (o["metadata"]["namespace"], o["metadata"]["labels"]["rlrun.dev/run"])
            for o in runs.cluster.all("ReplicaSet", "Job")
        }
        admitted = {
            (o["metadata"]["namespace"], o["metadata"]["name"])
            for o in runs.cluster.all("RLRun")
            if ((o.get("status") or {}).get("queue") or {}).get("admittedTime")
        }
        assert started <= admitted, "an admission is written before the first child"
        assert len(admitted) <= 2
        if "maxRunsPerNamespace" in queue or queue is OWN_CAPACITY:
            assert len({namespace for namespace, _ in admitted}) == len(admitted)
        if chance.random() < 0.4:
            runs.restart(**queue)
    await runs.settle()
    assert len(runs.started()) == min(2, len({k.namespace for k in runs.keys}) if "maxRunsPerNamespace" in queue else 2)


async def test_an_operator_that_dies_after_an_admission_gives_the_place_to_nobody_else() -> None:
    runs = QueuedRuns(**ONE_PLACE)
    runs.add("first", "second")
    runs.cluster.crash_after = 2
    with pytest.raises(Crash):
        await runs.look("first")
    runs.cluster.crash_after = None
    assert runs.place("first")["admittedTime"]
    assert runs.started() == set()
    runs.restart(**ONE_PLACE)
    assert await runs.look_at("second") == ["Queued"]
    await runs.settle()
    assert runs.started() == {"first"}


async def test_a_restart_keeps_the_order_of_those_who_wait() -> None:
    runs = QueuedRuns(**ONE_PLACE)
    await runs.arrive("first", "second", "third")
    since = runs.place("second")["since"]
    runs.change("first", stop=True)
    runs.restart(**ONE_PLACE)
    assert await runs.look_at("third") == ["Queued"]
    await runs.look("first", "first", "third")
    assert runs.phases("third") == ["Queued"], "the second one comes before it"
    await runs.wake_up()
    assert runs.phases("second", "third") == ["Pending", "Queued"]
    assert runs.place("second")["since"] == since


@pytest.mark.parametrize("queue", [{"maxRuns": 1}, {"capacity": {GPU: "8"}}])
async def test_runs_made_while_no_operator_ran_keep_their_order(queue: dict[str, Any]) -> None:
    runs = QueuedRuns(model=with_gpus(8), **queue)
    runs.add("suspended", suspend=True)
    runs.add("z-first", "a-second")
    runs.restart(**queue)
    assert await runs.look_at("a-second") == ["Queued"]
    await runs.settle()
    assert runs.phases("z-first", "a-second", "suspended") == ["Pending", "Queued", "Suspended"]


@pytest.mark.parametrize("end", ["suspend", "stop"])
async def test_a_place_is_given_back_when_the_pods_have_ended_and_the_next_is_woken(end: str) -> None:
    runs = await two_runs()
    runs.hold_pods()
    runs.change("first", **{end: True})
    for _ in range(3):
        assert await runs.look("first") is not None, "it is looked at until its pods have ended"
    assert await runs.look_at("second") == ["Queued"]
    assert runs.place("first")["admittedTime"]
    runs.restart(**ONE_PLACE)
    assert await runs.look_at("second") == ["Queued"], "a restart does not forget the pods that are ending"
    runs.end_pods()
    await runs.look("first")
    assert not runs.place("first")
    assert await runs.wake_up() == ["second"]
    assert runs.phases("second") == ["Pending"]
    assert runs.started() == {"second"}


@pytest.mark.parametrize("end", ["suspended", "made again"])
async def test_a_silent_watch_of_pods_gives_no_place_back(end: str) -> None:
    runs = QueuedRuns(**ONE_PLACE)
    runs.add("first", "second")
    feed = present(runs.world.follow().feed)
    await runs.settle()
    runs.start_pods()
    runs.hold_pods()
    feed.forget_changes()
    if end == "suspended":
        runs.change("first", suspend=True)
        feed.deliver()
        await runs.look("first")
        assert runs.cluster.all("ReplicaSet", "Job") == [], "its pods are ending"
        feed.forget_changes("Pod")
        feed.deliver()
    else:
        del runs.cluster.objects["RLRun", "team", "first"]
        runs.clock.advance(1)
        again = run_object("first", "team", "uid-again")
        again["metadata"]["creationTimestamp"] = runs.clock.now.isoformat()
        runs.cluster.put(again)
        feed.deliver()
    send = runs.cluster.send

    async def look_at_second(request: KubeRequest) -> Obj:
        answer = await send(request)
        if str(request) == "list pods in namespace team":
            runs.cluster.send = send  # type: ignore[method-assign]
            await runs.look("second")
        return answer

    runs.cluster.send = look_at_second  # type: ignore[method-assign]
    await runs.look("first")
    assert runs.cluster.send == send, "the place was confirmed"
    assert runs.phases("second") == ["Queued"]
    assert "second" not in runs.started()

    runs.end_pods()
    for old in runs.cluster.all("Pod", "ReplicaSet", "Job"):
        del runs.cluster.objects[old["kind"], "team", old["metadata"]["name"]]
    feed.deliver()
    await runs.look("first")
    await runs.wake_up()
    assert sorted(runs.phases("first", "second")) == (
        ["Pending", "Suspended"] if end == "suspended" else ["Pending", "Queued"]
    ), "each place is given once"


async def test_a_completed_run_gives_its_place_back() -> None:
    runs = await two_runs()
    end_orchestrator(runs.cluster, 0, "")
    await runs.look("first", "first")
    await runs.wake_up()
    assert runs.phases("first", "second") == ["Completed", "Pending"]
    assert not runs.place("first")
    await runs.settle()


async def test_a_pod_on_a_lost_node_does_not_keep_a_place_for_ever() -> None:
    runs = await two_runs()
    runs.hold_pods()
    runs.change("first", stop=True)
    await runs.look("first")
    runs.clock.advance(3600)
    await runs.look("first")
    await runs.wake_up()
    assert runs.phases("second") == ["Pending"]


async def test_a_deleted_run_gives_its_place_back_when_its_pods_have_ended() -> None:
    runs = await two_runs()
    runs.hold_pods()
    runs.cluster.request_deletion(runs.run("first"), runs.clock.now)
    await runs.look("first")
    assert runs.cluster.find("RLRun", "first") is None
    assert await runs.look("first") == runs.world.settings.poll_seconds
    assert await runs.look_at("second") == ["Queued"]
    runs.end_pods()
    assert await runs.look("first") is None
    await runs.wake_up()
    assert runs.phases("second") == ["Pending"]


async def test_a_run_made_again_under_its_name_does_not_inherit_the_place() -> None:
    runs = await two_runs()
    runs.hold_pods()
    runs.cluster.request_deletion(runs.run("first"), runs.clock.now)
    await runs.look("first")
    runs.clock.advance(5)
    again = run_object("first", uid="uid-again")
    again["metadata"]["creationTimestamp"] = "2026-01-01T00:00:30Z"
    runs.cluster.put(again)
    assert await runs.look_at("first") == ["Queued"]
    runs.end_pods()
    await runs.look("first")
    await runs.wake_up()
    assert runs.phases("second", "first") == ["Pending", "Queued"]


async def test_a_resumed_run_queues_again_at_the_end() -> None:
    runs = await two_runs()
    await runs.ask("first", suspend=True)
    assert runs.phases("first", "second") == ["Suspended", "Pending"]
    runs.add("third")
    await runs.settle(after=10)
    await runs.ask("first", suspend=False)
    assert runs.phases("first", "third") == ["Queued", "Queued"]
    await runs.ask("second", stop=True)
    assert runs.phases("third", "first") == ["Pending", "Queued"]
    await runs.ask("third", stop=True)
    assert runs.phases("first") == ["Pending"]
    assert runs.status("first")["attempt"] == 2


async def test_a_place_that_is_still_in_the_status_is_not_given_twice() -> None:
    runs = await two_runs()
    runs.change("first", suspend=True)
    await runs.look("first")
    write = "apply the status of RLRun team/first"
    runs.cluster.answers[write] = [ApiError(500, "InternalError", "no")]
    with pytest.raises(ApiError):
        await runs.look("first")
    runs.cluster.answers.clear()
    assert await runs.wake_up() == ["second"]
    assert runs.started() == {"second"}
    assert runs.place("first")["admittedTime"], "as the failed write left it"
    await runs.ask("first", suspend=False)
    assert runs.phases("first", "second") == ["Queued", "Pending"]
    assert runs.started() == {"second"}


async def test_a_place_that_is_still_in_the_status_is_kept_after_a_refused_write() -> None:
    """Another operator process would read it there."""
    runs = QueuedRuns(**ONE_PLACE)
    await runs.arrive("first")
    runs.change("first", suspend=True)
    await runs.look("first")
    write = "apply the status of RLRun team/first"
    for suspends, status in ((True, 500), (False, 403)):
        runs.change("first", suspend=suspends)
        runs.cluster.answers[write] = [ApiError(status, "InternalError", "no")]
        with pytest.raises(ApiError):
            await runs.look("first")
    runs.cluster.answers.clear()
    assert runs.place("first")["admittedTime"], "as the failed writes left it"
    runs.add("second")
    assert await runs.look_at("second") == ["Queued"]
    await runs.settle()
    assert runs.started() == {"first"}


async def test_a_waiting_run_can_be_suspended_stopped_and_deleted() -> None:
    runs = await two_runs()
    await runs.arrive("third", "fourth")
    runs.change("second", suspend=True)
    await runs.ask("third", stop=True)
    assert runs.phases("second", "third", "fourth") == ["Suspended", "Stopped", "Queued"]
    assert runs.place("fourth")["runsAhead"] == 0
    runs.cluster.request_deletion(runs.run("fourth"), runs.clock.now)
    await runs.look("fourth")
    assert runs.queue is not None
    assert not runs.queue.on_run_deleted(RunKey("team", "fourth"), [], runs.clock.now)


async def test_a_run_that_cannot_begin_takes_no_place() -> None:
    runs = QueuedRuns(**ONE_PLACE)
    runs.add("wrong", model="no/such", startDeadlineSeconds=600)
    await runs.arrive("right")
    assert runs.phases("wrong", "right") == ["Pending", "Pending"]
    assert runs.started() == {"right"}
    runs.cluster.put(model_object("no/such"))
    await runs.settle()
    assert runs.phases("wrong") == ["Queued"]


async def test_no_run_starts_half() -> None:
    runs = QueuedRuns(model=with_gpus(4, 1, replicas=2), capacity={GPU: "11"})
    await runs.arrive("first", "second")
    assert runs.started() == {"first"}
    assert runs.place("first")["resources"] == {GPU: "6"}
    assert runs.status("second")["reason"] == "WaitingForCapacity"
    assert "needs 6 nvidia.com/gpu" in runs.status("second")["message"]


async def test_a_run_waits_whole_for_the_gpus_of_its_namespace() -> None:
    runs = QueuedRuns(model=with_gpus(3, 1), namespaces={"team": {"capacity": {GPU: "5"}}})
    await runs.arrive("first", "second")
    assert runs.started() == {"first"}
    assert runs.status("second")["reason"] == "NamespaceLimitReached"
    for part in ("Namespace team may have at most 5 nvidia.com/gpu at a time", "needs 4 nvidia.com/gpu"):
        assert part in runs.status("second")["message"]
    assert runs.place("first")["resources"] == {GPU: "4"}


async def test_a_run_larger_than_its_namespace_may_have_says_so() -> None:
    runs = QueuedRuns(model=with_gpus(8, 8), capacity={GPU: "64"}, namespaces={"team": {"capacity": {GPU: "12"}}})
    await runs.arrive("large")
    assert runs.status("large")["reason"] == "ExceedsCapacity"
    assert "but namespace team has 12 for all runs" in runs.status("large")["message"]
    assert not runs.started()


async def test_all_pods_of_a_run_count() -> None:
    runs = QueuedRuns(model=with_gpus(0), capacity={"cpu": "100", "memory": "1Ti"})
    await runs.arrive("one", infrastructure={"computeSize": "S"}, env=[{"id": "rlrun/a"}, {"id": "rlrun/b"}])
    cpu = runs.place("one")["resources"]["cpu"]
    assert cpu == "4555m", "two environments, trainer and engine of 1, orchestrator 500m, sidecar 50m, 5 log holds"


async def test_a_run_that_no_capacity_has_room_for_says_what_to_change_and_ends() -> None:
    runs = QueuedRuns(model=with_gpus(8, 2, replicas=4), capacity={GPU: "12"})
    runs.add("large", startDeadlineSeconds=600)
    runs.add("other", model="small/model")
    runs.cluster.put(model_object("small/model", trainer={"gpus": 12}, inference={"gpus": 0}))
    await runs.settle()
    assert runs.phases("large", "other") == ["Pending", "Pending"]
    assert runs.status("large")["reason"] == "ExceedsCapacity"
    for part in ("16 nvidia.com/gpu", "trainer 8", "inference 8", "12 for all runs", "queue.capacity"):
        assert part in runs.status("large")["message"]
    assert runs.started() == {"other"}
    await runs.settle(after=601)
    assert (runs.phases("large"), runs.status("large")["reason"]) == (["Failed"], "ExceedsCapacity")


async def test_a_larger_capacity_lets_a_refused_run_begin() -> None:
    runs = QueuedRuns(model=with_gpus(16), capacity={GPU: "12"})
    await runs.arrive("large", startDeadlineSeconds=600)
    runs.clock.advance(500)
    runs.restart(capacity={GPU: "16"})
    await runs.settle()
    assert runs.phases("large") == ["Pending"]
    assert runs.started() == {"large"}
    await runs.settle(after=500)
    assert runs.phases("large") == ["Pending"], "the deadline counts from the admission"


async def test_lower_limits_end_no_run_and_higher_ones_let_others_begin() -> None:
    runs = QueuedRuns(maxRuns=3)
    await runs.arrive("a", "b", "c", "d", "e")
    runs.restart(maxRuns=2)
    await runs.settle()
    assert runs.started() == {"a", "b", "c"}
    await runs.ask("a", stop=True)
    assert runs.started() == {"b", "c"}
    runs.restart(maxRuns=3)
    await runs.settle()
    assert runs.started() == {"b", "c", "d"}


@pytest.mark.parametrize("queue", [{"maxRuns": 1}, {"capacity": {GPU: "8"}}])
async def test_runs_from_before_the_queue_have_their_places(queue: dict[str, Any]) -> None:
    runs = QueuedRuns(model=with_gpus(4, 2))
    await runs.arrive("a", "b")
    runs.start_pods()
    await runs.settle()
    runs.restart(**queue)
    runs.add("c")
    assert await runs.look_at("c") == ["Queued"], "the resources of the other runs are not known yet"
    await runs.settle()
    assert runs.started() == {"a", "b"}
    assert runs.place("a")["admittedTime"] == runs.status("a")["attemptStartTime"]
    await runs.ask("a", stop=True)
    assert runs.phases("c") == ["Queued"]
    await runs.ask("b", stop=True)
    assert runs.started() == {"c"}


async def test_without_the_queue_those_who_wait_begin_and_its_traces_go() -> None:
    runs = await two_runs()
    runs.restart()
    await runs.settle()
    assert runs.started() == {"first", "second"}
    assert (runs.place("first"), runs.place("second"), runs.phases("second")) == ({}, {}, ["Pending"])
    assert runs.status("second")["reason"] != "NotQueued"


async def test_another_limited_resource_counts_for_runs_that_have_their_place() -> None:
    runs = QueuedRuns(model=with_gpus(4), capacity={GPU: "8"})
    await runs.arrive("a", "b")
    runs.restart(capacity={GPU: "100", "cpu": "27"})
    await runs.arrive("c")
    assert runs.place("a")["resources"] == {GPU: "4", "cpu": "13554m"}
    assert runs.phases("c") == ["Queued"]


async def test_those_who_wait_keep_their_turn_when_another_resource_is_limited() -> None:
    runs = QueuedRuns(model=with_gpus(4), capacity={GPU: "4"})
    runs.add("first", "z-early", "a-late")
    assert await runs.look_at("first", "z-early", "a-late") == ["Pending", "Queued", "Queued"]
    runs.change("first", stop=True)
    await runs.look("first", "first")
    assert not runs.place("first")
    runs.restart(capacity={GPU: "4", "cpu": "100"})
    assert await runs.look_at("a-late") == ["Queued"]
    await runs.settle()
    assert runs.started() == {"z-early"}


async def test_a_place_given_for_an_outdated_demand_costs_a_run_no_turn() -> None:
    """The first of the two observations of a look may be older than a change of the model."""
    runs = QueuedRuns(model=with_gpus(4), capacity={GPU: "7"})
    await runs.arrive("a", "b")
    since = runs.place("b")["since"]
    runs.change("a", stop=True)
    await runs.look("a", "a")
    answers = []
    for gpus in (4, 6):
        runs.cluster.put(with_gpus(gpus))
        runs.clock.advance(30)
        observed = present(await runs.reconciler()._observer.observe("team", "b"))
        assert runs.queue is not None
        answers.append(runs.queue.answer(observed, runs.clock()))
    before, after = answers
    assert isinstance(before, Admitted)
    assert isinstance(after, Admitted)
    assert after.queue.resources != before.queue.resources
    assert str(after.queue.since).replace("+00:00", "Z").replace(" ", "T") == since


async def test_a_run_restarts_with_its_place_unless_its_model_has_grown() -> None:
    runs = QueuedRuns(model=with_gpus(4), capacity={GPU: "8"})
    await runs.arrive("a", "b", failurePolicy={"rules": [{"action": "RestartRun"}]})
    runs.start_pods()
    await runs.settle()
    await runs.arrive("c")
    crash_container(runs.cluster, "a-trainer-0")
    await runs.settle()
    assert runs.status("a")["reason"] == "Restarting"
    await runs.settle(after=11)
    assert (runs.status("a")["attempt"], runs.phases("c")) == (2, ["Queued"])
    runs.start_pods()
    await runs.settle()
    runs.cluster.put(with_gpus(6))
    crash_container(runs.cluster, "b-trainer-0")
    await runs.settle()
    await runs.settle(after=30)
    assert runs.phases("b", "c") == ["Queued", "Queued"], "4 of 8 are free, and it needs 6 now"
    assert runs.started() == {"a"}


async def test_higher_priority_comes_first_and_its_value_survives_a_restart() -> None:
    runs = await two_runs()
    urgent = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "urgent"}, "value": 9}
    runs.cluster.put(urgent)
    await runs.arrive("important", priorityClassName="urgent")
    assert (runs.place("important")["runsAhead"], runs.place("second")["runsAhead"]) == (0, 1)
    assert runs.place("important")["priority"] == 9
    runs.change("first", stop=True)
    runs.restart(**ONE_PLACE)
    await runs.look("second")
    await runs.settle()
    assert runs.phases("important", "second") == ["Pending", "Queued"]


async def test_a_run_whose_status_cannot_be_written_does_not_hold_up_the_others() -> None:
    runs = await two_runs()
    await runs.arrive("third")
    refused = ApiError(403, "Forbidden", "a webhook says no")
    runs.cluster.answers["apply the status of RLRun team/second"] = [refused]
    runs.change("first", stop=True)
    await runs.look("first", "first")
    for _ in range(3):
        while runs.woken:
            key = runs.woken.pop(0)
            if key.name == "second":
                with pytest.raises(ApiError):
                    await runs.look("second")
            else:
                await runs.look(key.name)
    assert runs.phases("third") == ["Pending"]


@pytest.mark.parametrize("status", [408, 409, 429, 500, 503])
async def test_a_temporary_error_costs_no_turn(status: int) -> None:
    runs = QueuedRuns(**ONE_PLACE)
    runs.add("first", "second")
    runs.restart(**ONE_PLACE)
    busy = "list pods in namespace team"
    runs.cluster.answers[busy] = [ApiError(status, "TooManyRequests", "storage is (re)initializing")]
    with pytest.raises(ApiError):
        await runs.look("first")
    runs.cluster.answers.clear()
    await runs.look("second", "first")
    assert runs.phases("first", "second") == ["Pending", "Queued"]


async def test_a_write_without_an_answer_keeps_the_place() -> None:
    runs = QueuedRuns(**ONE_PLACE)
    runs.add("first", "second")
    runs.cluster.answers["apply the status of RLRun team/first"] = [ApiError(0, "Timeout", "no answer")]
    with pytest.raises(ApiError):
        await runs.look("first")
    assert await runs.look_at("second") == ["Queued"]
    runs.cluster.answers.clear()
    await runs.settle()
    assert runs.started() == {"first"}


async def test_a_place_goes_to_the_next_run_if_its_run_is_not_reconciled() -> None:
    runs = await two_runs()
    await runs.arrive("third")
    runs.change("first", stop=True)
    await runs.look("first", "first")
    assert RunKey("team", "second") in runs.woken
    runs.clock.advance(OFFER_SECONDS - 1)
    assert await runs.look_at("third") == ["Queued"]
    runs.clock.advance(1)
    assert await runs.look_at("third") == ["Pending"]
    assert await runs.look_at("second") == ["Queued"]


async def test_smaller_runs_pass_a_large_one_for_a_time_that_a_restart_does_not_forget() -> None:
    runs = QueuedRuns(model=with_gpus(6), capacity={GPU: "8"}, backfillSeconds=100)
    runs.cluster.put(model_object("small/model", trainer={"gpus": 1}, inference={"gpus": 0}))
    await runs.arrive("a-running", "large")
    blocked = runs.place("large")["blockedTime"]
    await runs.arrive("small", model="small/model")
    assert runs.started() == {"a-running", "small"}
    runs.clock.advance(60)
    runs.restart(capacity={GPU: "8"}, backfillSeconds=100)
    await runs.settle()
    assert runs.place("large")["blockedTime"] == blocked
    runs.clock.advance(50)
    await runs.arrive("late", model="small/model")
    assert runs.started() == {"a-running", "small"}


@pytest.mark.slow
async def test_a_long_queue_costs_few_writes() -> None:
    """One place of many is given back: the first in the queue are told, and nobody else."""
    runs = QueuedRuns(**ONE_PLACE)
    runs.add("first", *(f"r{i:03}" for i in range(150)))
    everyone = [key.name for key in sorted(runs.keys)]
    await runs.look(*everyone)
    await runs.settle()
    assert runs.place("r149")["runsAhead"] == 149
    before = runs.cluster.writes
    await runs.look(*everyone * 3)
    assert runs.cluster.writes == before, "a look at a queue that does not move writes nothing"
    runs.change("first", stop=True)
    await runs.look("first", "first")
    before = runs.cluster.writes
    names = await runs.wake_up()
    assert len(names) <= 20
    assert set(names) <= {f"r{i:03}" for i in range(12)}
    assert runs.cluster.writes - before <= 60
    await runs.look(*everyone)
    assert runs.place("r149")["runsAhead"] == 149, "a number that is nearly right is not written"
    assert runs.place("r005")["runsAhead"] == 4


def end_download(runs: QueuedRuns) -> None:
    """The Job controller reports the end of the download."""
    (job,) = (job for job in runs.cluster.all("Job") if job["metadata"]["name"].startswith("rlrun-weights-"))
    runs.cluster.put({**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_run_that_waits_for_weights_holds_no_place(restarts: bool) -> None:
    runs = QueuedRuns(model=model_object(cache={"size": "20Gi"}), **ONE_PLACE)
    runs.cluster.put(model_object("other/model"))
    runs.add("downloading")
    await runs.arrive("next", model="other/model")
    assert [runs.status(name)["reason"] for name in ("downloading", "next")] == ["WeightsDownloading", "Starting"]
    assert (runs.place("downloading"), runs.started()) == ({}, {"next"})
    if restarts:
        runs.restart(**ONE_PLACE)
        await runs.settle()
    end_download(runs)
    await runs.settle(after=60)
    assert runs.phases("downloading") == ["Queued"]
    assert "attemptStartTime" not in runs.status("downloading"), "its start deadline begins with the place"
    await runs.ask("next", stop=True)
    assert runs.started() >= {"downloading"}
    assert runs.place("downloading")["admittedTime"]


@pytest.mark.parametrize("queue", [ONE_PLACE, {"capacity": {GPU: "1"}}])
async def test_a_download_that_ends_during_a_restart_gives_no_place(queue: dict[str, Any]) -> None:
    runs = QueuedRuns(model=model_object(cache={"size": "20Gi"}, trainer={"gpus": 1}), **queue)
    await runs.arrive("first", "second")
    assert [runs.status(name)["reason"] for name in ("first", "second")] == ["WeightsDownloading"] * 2
    end_download(runs)
    runs.restart(**queue)
    await runs.settle()
    assert (runs.phases("first", "second"), runs.started()) == (["Pending", "Queued"], {"first"})


async def test_a_run_that_waits_for_weights_holds_up_no_queue_after_a_restart() -> None:
    queue = {"capacity": {GPU: "8"}}
    runs = QueuedRuns(model=model_object(cache={"size": "20Gi"}), **queue)
    runs.cluster.put(model_object("other/model"))
    await runs.arrive("downloading")
    runs.restart(**queue)
    runs.add("next", model="other/model")
    assert await runs.look_at("next") == ["Pending"], "its place needs no reconcile of the other run"


async def test_an_attempt_whose_pods_are_refused_keeps_its_place() -> None:
    """Its claim is frozen, and the cache is read no more."""
    runs = QueuedRuns(model=model_object(cache={"size": "20Gi"}), **ONE_PLACE)
    await runs.arrive("first")
    end_download(runs)
    refusal = ApiError(403, "Forbidden", "exceeded quota: pods, requested: pods=1, used: pods=1")
    for obj in ("ReplicaSet team/first-trainer", "ReplicaSet team/first-inference", "ReplicaSet team/first-env-0"):
        runs.cluster.answers[f"apply {obj}"] = [refusal]
    await runs.settle()
    assert runs.status("first")["reason"] == "QuotaExceeded"
    assert runs.started() == set()
    assert runs.place("first")["admittedTime"]
    await runs.arrive("second")
    assert runs.phases("first", "second") == ["Pending", "Queued"]


def change_status(runs: QueuedRuns, name: str, **changes: Any) -> None:
    runs.cluster.put({**runs.run(name), "status": {**runs.status(name), **changes}})


@pytest.mark.parametrize(
    ("wrong", "started"),
    [
        ({"phase": "Paused"}, {"first", "second"}),
        ({"resources": {GPU: "many", "memory": "1Gi"}}, {"first", "second", "third"}),
    ],
    ids=["its resources count", "its resources are unreadable"],
)
async def test_a_place_that_cannot_be_read_blocks_no_other_run(wrong: dict[str, Any], started: set[str]) -> None:
    runs = QueuedRuns(model=with_gpus(4), capacity={GPU: "8"})
    await runs.arrive("first")
    good = runs.status("first")
    change_status(runs, "first", **(wrong if "phase" in wrong else {"queue": {**good["queue"], **wrong}}))
    runs.restart(capacity={GPU: "8", "cpu": "100"})
    runs.add("second", "third")
    with pytest.raises(ApiError, match="InvalidAnswer"):
        await runs.look("first")
    await runs.look("second", "third", "second", "third")
    assert runs.started() == started
    change_status(runs, "first", **good)
    await runs.settle()
    assert runs.place("first")["resources"] == {GPU: "4", "cpu": "13554m"}
    assert runs.place("first")["admittedTime"] == good["queue"]["admittedTime"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"queue": "first"},
        {"queue": {"admittedTime": "lately"}},
        {"queue": ["first"], "attemptStartTime": "lately"},
        {"queue": None, "phase": "Paused"},
    ],
    ids="".join,
)
async def test_a_run_whose_queue_cannot_be_read_keeps_its_place(wrong: dict[str, Any]) -> None:
    runs = await two_runs()
    change_status(runs, "first", **wrong)
    runs.restart(**ONE_PLACE)
    for _ in range(2):
        with pytest.raises(ApiError, match="InvalidAnswer"):
            await runs.look("first")
        await runs.look("second")
    assert runs.started() == {"first"}
    assert runs.phases("second") == ["Queued"]


@pytest.mark.parametrize("wrong", [{"phase": "Paused"}, {"startTime": "lately"}], ids="".join)
async def test_a_run_that_waits_takes_no_place_by_a_status_that_cannot_be_read(wrong: dict[str, Any]) -> None:
    runs = await two_runs()
    change_status(runs, "second", **wrong)
    runs.change("first", stop=True)
    await runs.look(*["first"] * 3)
    runs.restart(**ONE_PLACE)
    runs.add("third")
    with pytest.raises(ApiError, match="InvalidAnswer"):
        await runs.look("second")
    assert await runs.look_at("third") == ["Pending"]
