"""The plan of a shared pool, from what was observed."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from rlrun.api.run import RLRunSpec
from rlrun.kube.objects import Obj
from rlrun.protocol import signed_text
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import MAX_RUNS
from rlrun.protocol.storage_access import StorageGrant, StorageRole
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.resources.shared_pool import pool_account, shared_pool
from rlrun_operator.serving.observation import PoolObservation, PoolPlan
from rlrun_operator.serving.shared_planner import max_requests, plan_shared_pool, pool_order

from tests.support.clocks import START
from tests.support.cluster_objects import run_object
from tests.support.operator_world import SETTINGS
from tests.support.run_states import run_spec
from tests.support.shared_pools import TOKEN_KEY, shared_model
from tests.unit.rlrun_operator.resources.test_shared_pool import model

CACHED: Obj = {"source": f"hf://o/m@{'0' * 40}", "cache": {"size": "1Gi"}}


def pool_of(catalog: Obj) -> PoolIdentity:
    return shared_pool("team", model(**catalog["spec"]), SETTINGS)


def run(number: int = 0, **metadata: Any) -> Obj:
    """A run that got its slot so many seconds after the start."""
    found = run_object(f"run-{number}", uid=f"uid-{number}")
    time = (START + timedelta(seconds=number)).isoformat()
    status = {"phase": "Running", "queue": {"admittedTime": time}}
    return found | {"status": status, "metadata": {**found["metadata"], **metadata}}


def observed(catalog: Obj | None = None, **facts: Any) -> PoolObservation:
    catalog = catalog or shared_model()
    found = PoolObservation(pool_of(catalog), models=(catalog,), runs=(run(),), token="t", token_key=TOKEN_KEY)
    return replace(found, **facts)


def kinds(plan: PoolPlan) -> list[str]:
    return sorted(str(obj["kind"]) for obj in plan.applies)


def test_a_pool_with_a_run_gets_all_its_objects() -> None:
    plan = plan_shared_pool(observed(), SETTINGS, START)
    assert kinds(plan) == ["Deployment", "NetworkPolicy", "Secret", "Service", "ServiceAccount"]
    assert len(plan.new) == 5
    assert (plan.problem, plan.deletes) == (None, ())


def test_a_run_without_a_slot_or_being_deleted_is_not_in_the_order() -> None:
    queued = run(1) | {"status": {"phase": "Queued", "queue": {"since": START.isoformat()}}}
    leaving = run(2, deletionTimestamp="2026-01-01T00:00:00Z")
    suspended = run(3)
    suspended["status"]["phase"] = "Suspended"
    order = pool_order(observed(runs=(queued, leaving, suspended)), SETTINGS, START)
    assert [one.uid for one in order.runs] == ["uid-3"], "pods of the suspended run still complete their turns"


def test_an_order_has_the_oldest_slots_and_never_more_than_fit() -> None:
    runs = tuple(run(number) for number in reversed(range(MAX_RUNS + 3)))
    order = pool_order(observed(runs=runs), SETTINGS, START)
    assert [one.uid for one in order.runs] == [f"uid-{number}" for number in range(MAX_RUNS)]


def test_equal_observations_give_equal_orders() -> None:
    one, two = (observed(runs=runs) for runs in ((run(1), run(2)), (run(2), run(1))))
    assert pool_order(one, SETTINGS, START) == pool_order(two, SETTINGS, START)


def test_the_grant_of_an_order_names_the_pool_and_ends() -> None:
    pool = observed(runs=(run(1), run(2)))
    order = pool_order(pool, SETTINGS, START)
    grant = signed_text.verify(order.grant, [pool.storage_key], StorageGrant)
    assert grant is not None
    assert (grant.holder, grant.owner, grant.role) == (pool.key.name, pool.key.name, StorageRole.serving)
    assert grant.readable == [one.policies for one in order.runs]
    assert grant.ends is not None
    assert timedelta(minutes=90) <= grant.ends - START <= timedelta(hours=2)
    assert pool_order(pool, SETTINGS, START + timedelta(minutes=30)).grant != order.grant


@pytest.mark.parametrize(
    ("spec", "most"),
    [
        ({"batchSize": 8, "oversamplingFactor": 1.0}, 256),
        ({"batchSize": 512, "oversamplingFactor": 1.5}, 1536),
        ({"batchSize": 65536, "oversamplingFactor": 2.0}, 65536),
    ],
)
def test_an_engine_takes_two_requests_for_each_rollout_in_flight(spec: Obj, most: int) -> None:
    parsed = run_spec(**spec)
    assert isinstance(parsed, RLRunSpec)
    assert max_requests(parsed) == most


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"s3_problem": Problem(reason="S3CredentialsMissing", message="")}, "S3CredentialsMissing"),
        ({"models": ()}, "ModelNotFound"),
    ],
)
def test_what_prevents_a_new_pool_is_its_problem_and_changes_no_existing_pool(facts: Obj, reason: str) -> None:
    plan = plan_shared_pool(observed(**facts), SETTINGS, START)
    assert plan.problem is not None
    assert (plan.problem.reason, plan.applies) == (reason, ())
    children = plan_shared_pool(observed(), SETTINGS, START).applies
    plan = plan_shared_pool(observed(**facts, children=children, runs=(run(), run(1))), SETTINGS, START)
    assert kinds(plan) == ["Secret"]
    assert plan.problem is None


def test_a_new_pool_waits_for_the_weights_of_its_cache() -> None:
    plan = plan_shared_pool(observed(shared_model(**CACHED)), SETTINGS, START)
    assert {"PersistentVolumeClaim", "Job"} <= set(kinds(plan))
    assert "Deployment" not in kinds(plan)
    assert plan.problem is not None


def test_a_pool_of_another_template_is_not_created() -> None:
    plan = plan_shared_pool(observed(key=PoolIdentity("team", "tiny/model", "0" * 8)), SETTINGS, START)
    assert plan.applies == ()


def test_a_pool_without_objects_and_runs_needs_nothing() -> None:
    assert plan_shared_pool(observed(runs=()), SETTINGS, START) == PoolPlan()


def test_the_idle_time_is_stored_and_a_wrong_one_begins_again() -> None:
    children = plan_shared_pool(observed(), SETTINGS, START).applies
    plan = plan_shared_pool(observed(runs=(), children=children), SETTINGS, START)
    (account,) = (obj for obj in plan.applies if obj["kind"] == "ServiceAccount")
    assert account["metadata"]["annotations"]["rlrun.dev/idle-since"] == "2026-01-01T00:00:00Z"
    assert plan.requeue_after == 15
    for wrong in ("2999-01-01T00:00:00Z", "yesterday"):
        account = pool_account(observed().key)
        account["metadata"]["annotations"]["rlrun.dev/idle-since"] = wrong
        plan = plan_shared_pool(observed(runs=(), children=(account,)), SETTINGS, START)
        (written,) = (obj for obj in plan.applies if obj["kind"] == "ServiceAccount")
        assert written["metadata"]["annotations"]["rlrun.dev/idle-since"] == "2026-01-01T00:00:00Z"
