"""The plan of a shared pool, from what was observed."""

import base64
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from rlrun.api.run import RLRunSpec
from rlrun.kube.objects import Obj
from rlrun.protocol import signed_text
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import MAX_BATCH_BYTES, MAX_RUNS, MAX_TRAINER_GRANT, PoolOrder, TrainerOrder
from rlrun.protocol.storage_access import StorageGrant, StorageRole
from rlrun.protocol.trainer import SessionSpec
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.resources.shared_pool import pool_account, shared_pool
from rlrun_operator.serving.observation import PoolObservation, PoolPlan
from rlrun_operator.serving.shared_planner import max_batch_bytes, max_requests, plan_shared_pool, pool_orders

from tests.support import trainer_requests
from tests.support.clocks import START
from tests.support.cluster_objects import STORAGE_KEY, run_object
from tests.support.expectations import present
from tests.support.operator_world import SETTINGS
from tests.support.run_states import run_spec
from tests.support.shared_pools import TOKEN_KEY, shared_model
from tests.unit.rlrun_operator.resources.test_shared_pool import model

POOL_KINDS = ["Deployment", "Deployment", "NetworkPolicy", "Secret", "Service", "Service", "ServiceAccount"]
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


def pool_order(pool: PoolObservation, now: datetime = START) -> PoolOrder:
    return pool_orders(pool, SETTINGS, now, has_trainer=False).engines


def trainer_order(pool: PoolObservation) -> TrainerOrder:
    return present(pool_orders(pool, SETTINGS, START, has_trainer=True).trainer)


def session_spec() -> SessionSpec:
    return trainer_requests.spec("s3://rlrun/team/uid-2", "uid-2")


def kinds(plan: PoolPlan) -> list[str]:
    return sorted(str(obj["kind"]) for obj in plan.applies)


def test_a_pool_with_a_run_gets_all_its_objects() -> None:
    plan = plan_shared_pool(observed(), SETTINGS, START)
    assert kinds(plan) == POOL_KINDS
    assert len(plan.new) == 7
    assert (plan.problem, plan.deletes) == (None, ())


def test_the_order_has_the_runs_with_a_slot_whose_pods_may_still_complete_their_turns() -> None:
    queued = run(1) | {"status": {"phase": "Queued", "queue": {"since": START.isoformat()}}}
    leaving = run(2, deletionTimestamp="2026-01-01T00:00:00Z")
    suspended, failed = run(3), run(4)
    suspended["status"]["phase"], failed["status"]["phase"] = "Suspended", "Failed"
    order = pool_order(observed(runs=(queued, leaving, suspended, failed)))
    assert [one.uid for one in order.runs] == ["uid-2", "uid-3", "uid-4"]


def test_an_order_has_the_oldest_slots_and_never_more_than_fit() -> None:
    runs = tuple(run(number) for number in reversed(range(MAX_RUNS + 3)))
    order = pool_order(observed(runs=runs))
    assert [one.uid for one in order.runs] == [f"uid-{number}" for number in range(MAX_RUNS)]


def test_equal_observations_give_equal_orders() -> None:
    one, two = (observed(runs=runs) for runs in ((run(1), run(2)), (run(2), run(1))))
    assert pool_order(one) == pool_order(two)


def test_the_grant_of_an_order_names_the_pool_and_ends() -> None:
    pool = observed(runs=(run(1), run(2)))
    order = pool_order(pool)
    grant = signed_text.verify(order.grant, [pool.storage_key], StorageGrant)
    assert grant is not None
    assert (grant.holder, grant.owner, grant.role) == (pool.key.name, pool.key.name, StorageRole.serving)
    assert grant.readable == [one.policies for one in order.runs]
    assert grant.ends is not None
    assert timedelta(minutes=90) <= grant.ends - START <= timedelta(hours=2)
    assert pool_order(pool, START + timedelta(minutes=30)).grant != order.grant


def test_the_trainer_gets_the_same_runs_with_folder_number_of_policies_and_grant_of_each() -> None:
    old, young = run(1), run(2)
    old["spec"]["maxOffPolicySteps"], young["spec"]["maxOffPolicySteps"] = 20, 0
    pool = observed(runs=(old, young), storage_key=STORAGE_KEY, warm_starts={"uid-1": "s3://rlrun/team/uid-0/x"})
    engines, order = pool_order(pool), trainer_order(pool)
    assert [(one.uid, one.token_digest) for one in order.runs] == [(one.uid, one.token_digest) for one in engines.runs]
    first, second = order.runs
    assert (first.folder, second.folder) == ("s3://rlrun/team/uid-1", "s3://rlrun/team/uid-2")
    assert (first.keep_policies, second.keep_policies) == (22, 8)
    grants = [present(signed_text.verify(one.grant, [STORAGE_KEY], StorageGrant)) for one in order.runs]
    assert {(grant.holder, grant.role) for grant in grants} == {(pool.key.name, StorageRole.trainer)}
    assert [(grant.owner, grant.folder) for grant in grants] == [(one.uid, one.folder) for one in order.runs]
    assert [grant.readable for grant in grants] == [["s3://rlrun/team/uid-0/x"], []]
    assert all(grant.ends is not None and grant.ends - START <= timedelta(hours=2) for grant in grants)


def client_run(number: int = 0, **metadata: Any) -> Obj:
    found = run(number, **metadata)
    return found | {"spec": {"model": found["spec"]["model"], "driver": "Client"}}


def test_a_clients_run_may_load_its_adapters_send_many_requests_and_keeps_16_policies() -> None:
    pool = observed(runs=(run(1), client_run(2)), storage_key=STORAGE_KEY, clients={"uid-2": session_spec()})
    order = pool_order(pool)
    assert [one.adapters for one in order.runs] == [None, "s3://rlrun/team/uid-2/adapters"]
    assert [one.max_requests for one in order.runs] == [512, 2048]
    grant = present(signed_text.verify(order.grant, [STORAGE_KEY], StorageGrant))
    assert grant.readable == [f"s3://rlrun/team/{path}" for path in ("uid-1/policy", "uid-2/policy", "uid-2/adapters")]
    assert [one.keep_policies for one in trainer_order(pool).runs] == [10, 16]


def test_orders_without_clients_have_no_field_that_older_pods_do_not_know() -> None:
    (secret,) = (obj for obj in plan_shared_pool(observed(), SETTINGS, START).applies if obj["kind"] == "Secret")
    for order in ("pool-order.json", "trainer-order.json"):
        (entry,) = json.loads(base64.b64decode(secret["data"][order]))["runs"]
        assert not entry.keys() & {"adapters", "client"}


@pytest.mark.parametrize("kind", [run, client_run])
def test_the_secret_of_the_largest_pool_is_far_below_the_limit_of_kubernetes(kind: Callable[..., Obj]) -> None:
    name = "n" * 63
    runs = [kind(number, namespace=name, uid=f"{number:036}") for number in range(MAX_RUNS)]
    settings = SETTINGS.model_copy(
        update={"s3": SETTINGS.s3.model_copy(update={"bucket": "b" * 63, "prefix": "p" * 200})}
    )
    catalog = shared_model(f"{'o' * 40}/{'m' * 80}", sharing={"maxRuns": MAX_RUNS})
    key = shared_pool(name, model(**catalog["spec"]), settings)
    uri = f"s3://{'b' * 63}/{'p' * 200}/{name}/{'0' * 36}/checkpoints/step-000001"
    uids = [str(one["metadata"]["uid"]) for one in runs]
    clients = dict.fromkeys(uids, session_spec()) if kind is client_run else {}
    pool = observed(catalog, key=key, runs=tuple(runs), warm_starts=dict.fromkeys(uids, uri), clients=clients)
    (secret,) = (obj for obj in plan_shared_pool(pool, settings, START).applies if obj["kind"] == "Secret")
    assert len(json.dumps(secret)) < 512 * 1024
    orders = pool_orders(pool, settings, START, has_trainer=True)
    assert len(orders.engines.runs) == len(present(orders.trainer).runs) == MAX_RUNS
    assert all(len(one.grant) < MAX_TRAINER_GRANT for one in present(orders.trainer).runs)


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
    ("spec", "seq_len", "most"),
    [
        ({"batchSize": 8, "oversamplingFactor": 1.0}, 256, 64 * 1024**2),
        ({"batchSize": 512, "oversamplingFactor": 1.5}, 8192, 768 * 8192 * 49),
        ({"batchSize": 8, "tokenBatchSize": 10_000_000}, 256, 490_000_000),
        ({"batchSize": 65536, "oversamplingFactor": 2.0}, 8192, MAX_BATCH_BYTES),
        ({"batchSize": 8}, None, MAX_BATCH_BYTES),
    ],
)
def test_the_trainer_reads_batches_several_times_as_large_as_the_runs_own(
    spec: Obj, seq_len: int | None, most: int
) -> None:
    parsed = run_spec(**spec)
    assert isinstance(parsed, RLRunSpec)
    assert max_batch_bytes(parsed, seq_len) == most


def test_the_trainers_order_limits_batches_by_the_length_of_the_models_sequences() -> None:
    large = run(1)
    large["spec"] |= {"batchSize": 512, "oversamplingFactor": 1.5}
    for length in (8192, 16384):
        (entry,) = trainer_order(observed(shared_model(seqLen=length), runs=(large,))).runs
        assert entry.max_batch_bytes == 768 * length * 49
    (entry,) = trainer_order(replace(observed(runs=(large,)), models=())).runs
    assert entry.max_batch_bytes == MAX_BATCH_BYTES, "the RLModel was deleted"


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


def test_a_pool_without_its_trainer_is_not_complete() -> None:
    children = plan_shared_pool(observed(), SETTINGS, START).applies
    name = observed().key.trainer
    rest = tuple(child for child in children if (child["kind"], child["metadata"]["name"]) != ("Deployment", name))
    plan = plan_shared_pool(observed(children=rest), SETTINGS, START)
    assert [obj["metadata"]["name"] for obj in plan.applies] == [name]
    problem = Problem(reason="S3CredentialsMissing", message="")
    plan = plan_shared_pool(observed(children=rest, s3_problem=problem), SETTINGS, START)
    assert (plan.applies, plan.problem) == ((), problem)


@pytest.mark.parametrize("missing", ["trainer", "name"])
def test_a_deployment_that_cannot_come_back_because_its_model_is_missing_is_a_problem(missing: str) -> None:
    children = plan_shared_pool(observed(), SETTINGS, START).applies
    name = getattr(observed().key, missing)
    rest = tuple(child for child in children if (child["kind"], child["metadata"]["name"]) != ("Deployment", name))
    plan = plan_shared_pool(observed(children=rest, models=()), SETTINGS, START)
    assert present(plan.problem).reason == "ModelNotFound"
    assert plan.deletes == ()


def test_a_pool_without_a_shared_trainer_is_complete_without_its_model() -> None:
    catalog = shared_model(trainer={"gpus": 2})
    children = plan_shared_pool(observed(catalog), SETTINGS, START).applies
    plan = plan_shared_pool(observed(catalog, children=children, models=()), SETTINGS, START)
    assert plan.problem is None


def test_a_trainer_of_several_processes_gets_no_order() -> None:
    plan = plan_shared_pool(observed(shared_model(trainer={"gpus": 2})), SETTINGS, START)
    assert kinds(plan) == ["Deployment", "NetworkPolicy", "Secret", "Service", "ServiceAccount"]
    assert present(plan.orders).trainer is None


def test_an_old_pool_keeps_its_trainer() -> None:
    children = plan_shared_pool(observed(), SETTINGS, START).applies
    changed = shared_model(trainer={"gpus": 2})
    plan = plan_shared_pool(observed(changed, key=observed().key, children=children), SETTINGS, START)
    assert (plan.applies, plan.deletes) == ((), ())
    assert present(present(plan.orders).trainer).runs


def test_the_secrets_of_the_trainers_variables_are_checked_as_well() -> None:
    named = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "absent", "key": "key"}}}
    plan = plan_shared_pool(observed(shared_model(trainer={"env": [named]})), SETTINGS, START)
    assert present(plan.problem).reason == "SecretsMissing"


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
