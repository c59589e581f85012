"""Planner of shared pools. The plan depends only on the observation, the settings and the time.

A pool's lists of runs (`PoolOrder` and `TrainerOrder`) contain every run that holds one of its slots. The operator
creates the Deployments only while the digest in the pool's name matches the current RLModel and settings. A pool
without runs is deleted after `sharing.idleSeconds`, or immediately if the RLModel shows that no run can join it.
"""

import hashlib
import math
from collections.abc import Iterable
from datetime import datetime

from rlrun.api.model import Sharing, SharingMode
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import IDLE_ANNOTATION, Driver, Role
from rlrun.kube.conditions import parse_time, seconds
from rlrun.kube.kinds import DEPLOYMENT, SERVICE, SERVICE_ACCOUNT
from rlrun.kube.objects import Obj, ObjectRef, annotation, is_client_run
from rlrun.kube.pods import Pod
from rlrun.kube.references import find_model
from rlrun.protocol.client_run import client_token
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import MAX_BATCH_BYTES, MAX_RUNS, PooledRun, PoolOrder, TrainedRun, TrainerOrder
from rlrun.protocol.storage_access import StorageRole

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.ending import may_write
from rlrun_operator.planning.spec import parse_spec, readable_part
from rlrun_operator.resources.access.run_tokens import run_token
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.platform import run_layout
from rlrun_operator.resources.serving_pool import differs
from rlrun_operator.resources.shared_pool import (
    PoolOrders,
    deployment_names,
    pool_dependencies,
    shared_pool,
    shared_pool_children,
)
from rlrun_operator.resources.trainer import keep_policies
from rlrun_operator.serving.deployment_state import running_pods
from rlrun_operator.serving.observation import PoolObservation, PoolPlan
from rlrun_operator.serving.planner import (
    DOWNLOAD_SECONDS,
    SETTLED_SECONDS,
    existing_deployments,
    missing_weights,
    storage_access,
    usable_model,
)
from rlrun_operator.serving.sidecar_client import address

LEAST_REQUESTS = 256
MOST_REQUESTS = 65_536
RECIPIENTS = frozenset({"sidecar", "trainer"})
"""Names of containers that accept a `PoolOrder` or `TrainerOrder`."""
REQUESTS_PER_ROLLOUT = 2
"""Concurrent requests allowed per rollout in flight. A harness may send several at a time, and evaluations add more."""
CLIENT_REQUESTS = 2048
"""Maximum number of concurrent requests of a run with `driver: Client`. The SDK sends up to 2,000."""

LEAST_BATCH_BYTES = 64 * 1024**2
BATCH_BYTES_PER_TOKEN = 12.25
"""Bytes per token in a batch, including a teacher's log-probability (see `rlrun.protocol.train_batch`)."""
SEQUENCES_PER_ROLLOUT = 4
"""Number of full-length sequences per rollout for which a batch has space. Branching rollouts have many sequences, but
most are short.
"""


def plan_shared_pool(pool: PoolObservation, settings: OperatorSettings, now: datetime) -> PoolPlan:
    """Return the plan for a shared pool."""
    existing = existing_deployments(pool)
    wanted = _wanted_deployments(pool, settings)
    orders = pool_orders(pool, settings, now, has_trainer=pool.key.trainer in existing | wanted)
    if not orders.engines.runs:
        return _plan_idle(pool, orders, settings, now)
    # Existing Deployments are not changed by what prevents new ones.
    kept = pool_dependencies(pool.key, settings, pool.token, orders) if existing else []
    exists = bool(existing) and existing >= (wanted or _former_deployments(pool))
    model = usable_model(pool, settings)
    if isinstance(model, Problem):
        return _write(pool, orders, kept, problem=None if exists else model)
    if not wanted:
        return _write(pool, orders, kept)
    if pool.s3_problem is not None and not exists:
        return _write(pool, orders, kept, problem=pool.s3_problem)
    fill = missing_weights(pool, model, settings, now)
    if fill is not None:
        problem = None if exists else fill.problem
        return _write(pool, orders, [*kept, *fill.applies], deletes=fill.deletes, problem=problem)
    storage = storage_access(pool, settings)
    return _write(pool, orders, shared_pool_children(pool.key, settings, model, storage, pool.token, orders))


def _wanted_deployments(pool: PoolObservation, settings: OperatorSettings) -> set[str]:
    """Return the names of the pool's Deployments, or an empty set unless the RLModel and settings match the pool's
    digest.
    """
    model = find_model(pool.key.model, pool.models)
    if isinstance(model, Problem) or shared_pool(pool.key.namespace, model, settings) != pool.key:
        return set()
    return {*deployment_names(pool.key, model)}


def _former_deployments(pool: PoolObservation) -> set[str]:
    """Return the names of all Deployments that the pool ever had, according to its Services, which have the same names
    and are kept.
    """
    services = {child["metadata"]["name"] for child in pool.children if child["kind"] == SERVICE.kind}
    return services & {pool.key.name, pool.key.trainer}


def pool_orders(pool: PoolObservation, settings: OperatorSettings, now: datetime, *, has_trainer: bool) -> PoolOrders:
    """Return the lists of the pool's runs, at most MAX_RUNS, in the order in which the runs got their slots. The grants
    in the lists expire.

    A run that was suspended, has ended or is being deleted stays in these lists until its pods have ended, because its
    orchestrator completes the turns in progress.
    """
    slots = [(time, run) for run in pool.runs if (time := _admitted_time(run)) is not None]
    slots.sort(key=lambda slot: (slot[0], slot[1]["metadata"]["uid"]))
    runs = [run for _, run in slots[:MAX_RUNS]]
    model = find_model(pool.key.model, pool.models)
    seq_len = None if isinstance(model, Problem) else model.seq_len
    # The trainer cannot open the session of a client's run that has no configuration yet.
    configured = [run for run in runs if not is_client_run(run) or run["metadata"]["uid"] in pool.clients]
    trained = [_trained_run(pool, run, settings, now, seq_len) for run in configured] if has_trainer else []
    trainer = TrainerOrder(runs=trained) if has_trainer else None
    pooled = [_pooled_run(pool, run, settings) for run in runs]
    engines = PoolOrder(base=pool.key.model, runs=pooled)
    if runs:
        storage = storage_access(pool, settings)
        engines.grant = storage.held_grant(StorageRole.serving, pool.key.name, now, engines.folders)
    return PoolOrders(engines, trainer)


def max_requests(spec: RLRunSpec) -> int:
    """Return the maximum number of requests of a run that an engine processes at the same time."""
    if spec.driver is Driver.client:
        return CLIENT_REQUESTS
    rollouts = math.ceil(spec.batch_size * spec.oversampling_factor)
    return min(MOST_REQUESTS, max(LEAST_REQUESTS, REQUESTS_PER_ROLLOUT * rollouts))


def max_batch_bytes(spec: RLRunSpec, seq_len: int | None) -> int:
    """Return the maximum size in bytes of a run's batch that the pool's trainer reads. `seq_len` is the RLModel's
    sequence length, or None if it is unknown.
    """
    if seq_len is None:
        return MAX_BATCH_BYTES
    tokens = max(math.ceil(spec.batch_size * spec.oversampling_factor) * seq_len, spec.token_batch_size or 0)
    size = math.ceil(tokens * SEQUENCES_PER_ROLLOUT * BATCH_BYTES_PER_TOKEN)
    return min(MAX_BATCH_BYTES, max(LEAST_BATCH_BYTES, size))


def _admitted_time(run: Obj) -> datetime | None:
    queue = RLRunStatus.parse(run.get("status")).queue
    return None if queue is None else queue.admitted_time


def _pooled_run(pool: PoolObservation, run: Obj, settings: OperatorSettings) -> PooledRun:
    uid = str(run["metadata"]["uid"])
    layout = run_layout(settings, pool.key.namespace, uid)
    return PooledRun(
        uid=uid,
        token_digest=_token_digest(pool, run),
        policies=str(layout.policies),
        adapters=str(layout.adapters) if is_client_run(run) else None,
        max_requests=max_requests(_spec_of(run)),
    )


def _trained_run(
    pool: PoolObservation, run: Obj, settings: OperatorSettings, now: datetime, seq_len: int | None
) -> TrainedRun:
    uid = str(run["metadata"]["uid"])
    folder = str(run_layout(settings, pool.key.namespace, uid).root)
    storage = StorageAccess(settings, pool.storage_key, pool.key.namespace, uid, folder)
    # The pod of the trainer has the base model already.
    readable = storage.references(pool.warm_starts.get(uid))
    return TrainedRun(
        uid=uid,
        token_digest=_token_digest(pool, run),
        folder=folder,
        keep_policies=keep_policies(_spec_of(run)),
        max_batch_bytes=max_batch_bytes(_spec_of(run), seq_len),
        grant=storage.held_grant(StorageRole.trainer, pool.key.name, now, readable),
        client=pool.clients.get(uid),
    )


def _token_digest(pool: PoolObservation, run: Obj) -> str:
    uid = str(run["metadata"]["uid"])
    token = client_token(pool.storage_key, uid) if is_client_run(run) else run_token(pool.token_key, uid)
    return hashlib.sha256(token.encode()).hexdigest()


def _spec_of(run: Obj) -> RLRunSpec:
    spec = parse_spec(run)
    return readable_part(run) if isinstance(spec, Problem) else spec


def _plan_idle(pool: PoolObservation, orders: PoolOrders, settings: OperatorSettings, now: datetime) -> PoolPlan:
    """Return the plan for a pool without runs: keep its pods for `idleSeconds` with empty lists of runs, then delete
    it.
    """
    if not pool.children:
        return PoolPlan()
    since = _idle_since(pool, now)
    left = _idle_seconds(pool, settings) - seconds(since, now)
    if left <= 0:
        # A terminating trainer saves last checkpoints, with a token that ends with the ServiceAccount.
        is_saving = any(pod.role == Role.trainer and may_write(pod, now) for pod in pool.pods)
        children = [child for child in pool.children if not is_saving or child["kind"] == DEPLOYMENT.kind]
        # A pool is found by its Deployment or its ServiceAccount, so the ServiceAccount is deleted last.
        children.sort(key=lambda child: child["kind"] == SERVICE_ACCOUNT.kind)
        deletes = tuple(map(ObjectRef.of, children))
        return PoolPlan(deletes=deletes, requeue_after=SETTLED_SECONDS if is_saving else None)
    objects = pool_dependencies(pool.key, settings, pool.token, orders, since)
    return _write(pool, orders, objects, requeue_after=min(left, SETTLED_SECONDS))


def _idle_seconds(pool: PoolObservation, settings: OperatorSettings) -> int:
    """Return the seconds for which the pool is kept without runs: 0 if no run can join it, or the default of
    `sharing.idleSeconds` if the RLModel is missing or invalid.
    """
    model = find_model(pool.key.model, pool.models)
    if isinstance(model, Problem):
        return Sharing().idle_seconds
    can_join = model.sharing.mode is SharingMode.namespace and bool(_wanted_deployments(pool, settings))
    return model.sharing.idle_seconds if can_join else 0


def _idle_since(pool: PoolObservation, now: datetime) -> datetime:
    """Return the time since which the pool has had no run.

    The time is stored in an annotation that users can change, so an invalid or future time is replaced by `now`.
    """
    accounts = [child for child in pool.children if child["kind"] == SERVICE_ACCOUNT.kind]
    try:
        stored = parse_time(annotation(accounts[0], IDLE_ANNOTATION)) if accounts else None
    except ValueError:
        stored = None
    return now if stored is None else min(stored, now)


def _write(
    pool: PoolObservation,
    orders: PoolOrders,
    objects: Iterable[Obj],
    *,
    deletes: tuple[ObjectRef, ...] = (),
    problem: Problem | None = None,
    requeue_after: float | None = None,
) -> PoolPlan:
    """Return the plan that writes changed objects and sends the lists of runs to all sidecars and the trainer.

    Orders are sent in every reconcile, because a restarted process may have read an outdated Secret.
    """
    existing = {(c["kind"], c["metadata"]["name"]): c for c in pool.children}
    named = {(c["kind"], c["metadata"]["name"]): c for c in objects}
    applies = {key: child for key, child in named.items() if differs(child, existing.get(key))}
    return PoolPlan(
        deletes=deletes,
        applies=tuple(applies.values()),
        new=frozenset(applies.keys() - existing.keys()),
        orders=orders,
        recipients=tuple(pod.obj for pod in running_pods(pool.pods) if _listens(pod)),
        problem=problem,
        requeue_after=requeue_after or (SETTLED_SECONDS if problem is None else DOWNLOAD_SECONDS),
    )


def _listens(pod: Pod) -> bool:
    """Return whether the pod's sidecar or trainer is running and its node still reports to Kubernetes."""
    running = {status["name"] for status in pod.statuses if "running" in (status.get("state") or {})}
    return bool(address(pod.obj)) and bool(running & RECIPIENTS) and not pod.is_node_silent
