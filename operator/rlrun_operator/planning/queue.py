"""Orders the waiting runs, and decides which of them are admitted now.

Among runs of equal priority, the run of the namespace with the smallest dominant share comes first, then the run that
has waited longest. The dominant share is the largest fraction of a platform limit that the namespace's runs use,
divided by the namespace's weight. Each run in the order counts toward the share of its namespace for the following
runs.

If the resources of the first run are not free, they are reserved for it: immediately in strict order, otherwise after
it has been first for `backfillSeconds`. From then on the run is the first of its priority, so that smaller runs cannot
starve it. A run that waits only for a limit of its namespace does not block other namespaces, but reserves resources
within its namespace's limits. A run that waits for a slot of its shared pool blocks only the runs of that pool. The
resources of a shared pool count once, with its first run.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from rlrun.api.run_status import RLRunStatus
from rlrun.constants import Reason
from rlrun.kube.kinds import REPLICA_SET
from rlrun.kube.pods import component_of
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import ResolvedRun
from rlrun.protocol.shared_pool import pool_trainer_name

from rlrun_operator.config.quantities import from_millis, to_millis
from rlrun_operator.config.settings import OperatorSettings, QueueSettings
from rlrun_operator.kueue.workload import pod_count
from rlrun_operator.planning.beginning import awaits_weights
from rlrun_operator.planning.children import has_ended
from rlrun_operator.planning.ending import may_write
from rlrun_operator.planning.observation import RunKey, RunObservation
from rlrun_operator.planning.resolution import resolve_run
from rlrun_operator.planning.running import attempt_start, remaining_wait
from rlrun_operator.planning.spec import parse_spec
from rlrun_operator.planning.status import apply_change
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.demand import NO_KEY, pod_requests, workloads
from rlrun_operator.resources.shared_pool import pool_named, shared_deployments

Demand = Mapping[str, int]
"""Requested resources in thousandths, by name."""


@dataclass(frozen=True)
class PoolSlots:
    """Shared pool of a run: its number of slots, and its resources, which count once for all its runs."""

    namespace: str
    name: str
    slots: int = 0
    """Maximum number of runs. 0 means unknown, for a run that got its slot before this process started."""
    demand: Demand = field(default_factory=dict)

    @property
    def key(self) -> tuple[str, str]:
        """Key of the pool, unique across namespaces."""
        return self.namespace, self.name


@dataclass(frozen=True)
class SlotRequest:
    """Resources that a run's next or current attempt requests."""

    components: Mapping[str, Demand]
    """Requests of each component's pods, by resource in thousandths."""
    pool: PoolSlots | None = None
    """Shared pool of the attempt, whose pods are not in `components`."""

    @property
    def with_pool(self) -> "SlotRequest":
        """This request, with the pods of the shared pool as an additional component."""
        if self.pool is None:
            return self
        return SlotRequest({**self.components, "pool": self.pool.demand})

    @property
    def total(self) -> dict[str, int]:
        """Sum of the requests of all pods, by resource."""
        total: Counter[str] = Counter()
        for requests in self.components.values():
            total.update(requests)
        return dict(total)


def slot_request(
    observation: RunObservation, status: RLRunStatus, settings: OperatorSettings, now: datetime
) -> SlotRequest | None:
    """Return the run's request, or None if it needs no slot.

    A run needs no slot if it has ended, is stopped, suspended or being deleted, waits for its weights, or has an
    invalid spec or reference.
    """
    if observation.run["metadata"].get("deletionTimestamp") or (status.phase is not None and status.phase.finished):
        return None
    spec = parse_spec(observation.run)
    if isinstance(spec, Problem) or spec.stop or spec.suspend:
        return None
    if status.attempt_start_time is None:
        status = apply_change(status, attempt_start(status, now), now)
    resolved = resolve_run(observation, status, spec, settings)
    if isinstance(resolved, Problem) or awaits_weights(observation, status.attempt, resolved):
        return None
    components: dict[str, Counter[str]] = {}
    for obj in workloads(observation.identity(status.attempt), settings, resolved):
        requests = components.setdefault(component_of(obj), Counter())
        for name, millis in pod_requests(obj["spec"]["template"]["spec"]).items():
            requests[name] += pod_count(obj) * millis
    return SlotRequest(components, _pool_slots(observation.namespace, resolved, settings))


def _pool_slots(namespace: str, resolved: ResolvedRun, settings: OperatorSettings) -> PoolSlots | None:
    name, sharing = resolved.endpoints.pool, resolved.model.sharing
    if name is None:
        return None
    pool = pool_named(namespace, resolved.model.id, name)
    storage = StorageAccess(settings, NO_KEY, namespace, name)
    demand: Counter[str] = Counter()
    for deployment in shared_deployments(pool, settings, resolved.model, storage, token=""):
        for resource, amount in pod_requests(deployment["spec"]["template"]["spec"]).items():
            demand[resource] += deployment["spec"]["replicas"] * amount
    return PoolSlots(namespace, name, sharing.max_runs, demand)


def awaited_trainer(
    observation: RunObservation, status: RLRunStatus, pool: PoolSlots | None, now: datetime
) -> Problem | None:
    """Return the problem of a run whose next attempt uses `pool` while the trainer of its previous pool may write, or
    None if there is nothing to wait for.

    Two trainers must not write to the folder of one run. While it waits, the run holds no slot: the previous trainer
    closes the session when the `TrainerOrder` no longer lists the run.
    """
    previous = status.pool
    if previous is None or (pool is not None and pool.name == previous.name):
        return None
    if not observation.is_trainer_writing or remaining_wait(status, now) > 0:
        return None
    trainer = pool_trainer_name(previous.name)
    message = (
        f"Waiting for the trainer of the previous shared pool to save and close the run's session. If this takes "
        f"long, see `kubectl logs -n {observation.namespace} deployment/{trainer}`."
    )
    return Problem(reason=Reason.WAITING_FOR_PREVIOUS_PODS, message=message)


def may_have_pods(observation: RunObservation, now: datetime) -> bool:
    """Return whether a pod of the run may still run, or a workload may create one."""
    if any(may_write(pod, now) for pod in observation.own_pods):
        return True
    if observation.owned_children(REPLICA_SET.kind):
        return True
    return any(not has_ended(job, observation) for job in observation.owned_children("Job"))


def requests_of_pods(observation: RunObservation, now: datetime) -> dict[str, int]:
    """Return the requests of the run's existing pods, for a run whose configuration cannot be read."""
    total: Counter[str] = Counter()
    for pod in observation.own_pods:
        if may_write(pod, now) and pod.role:
            total.update(pod_requests(pod.obj["spec"]))
    return dict(total)


@dataclass(frozen=True)
class QueueLimits:
    """Settings of the queue, with capacities in thousandths."""

    settings: QueueSettings
    capacity: Demand
    """Limits of the platform."""
    namespaces: Mapping[str, Demand]
    """Capacities of namespaces that have their own."""

    @classmethod
    def of(cls, settings: QueueSettings) -> "QueueLimits":
        """Return the limits of these settings."""
        namespaces = {name: _millis(own.capacity) for name, own in settings.namespaces.items() if own.capacity}
        return cls(settings, _millis(settings.capacity), namespaces)

    @property
    def resources(self) -> frozenset[str]:
        """Names of all limited resources."""
        return frozenset(self.capacity).union(*self.namespaces.values())

    def capacity_for(self, namespace: str) -> Demand:
        """Return, for each resource, the most that a run of the namespace may request: the lower of its two limits."""
        own = self.namespaces.get(namespace, {})
        return {**self.capacity, **{name: min(whole, self.capacity.get(name, whole)) for name, whole in own.items()}}

    @property
    def backfill(self) -> timedelta:
        """Maximum time for which other runs may start ahead of the first run in the queue while its resources are not
        free.
        """
        return timedelta(seconds=self.settings.backfill_seconds)

    def runs_of(self, namespace: str) -> int | None:
        """Return the maximum number of admitted runs of the namespace, or None for no limit."""
        own = self.settings.namespaces.get(namespace)
        return self.settings.max_runs_per_namespace if own is None or own.max_runs is None else own.max_runs

    def weight_of(self, namespace: str) -> int:
        """Return the weight of the namespace."""
        own = self.settings.namespaces.get(namespace)
        return 1 if own is None else own.weight


def _millis(capacity: Mapping[str, str]) -> Demand:
    return {name: to_millis(quantity) for name, quantity in capacity.items()}


@dataclass
class QueuedRun:
    """Run that has a slot or waits for one. The demand of a waiting run is within the capacity."""

    key: RunKey
    uid: str
    since: datetime
    demand: Demand | None = None
    """Demand of the run, or None while it is unknown; the pool may then be unknown as well. If the platform has a
    capacity, an admitted run with unknown demand blocks all admissions, and a waiting one blocks the runs behind it. If
    only the namespace has a capacity, both block runs of the namespace, otherwise only runs of its shared pools.
    """
    priority: int = 0
    blocked_time: datetime | None = None
    """Time since which this run has been the first run in the queue whose resources are not free."""
    pool: PoolSlots | None = None
    """Shared pool of the run."""


@dataclass(frozen=True)
class QueuePosition:
    """Position of one waiting run."""

    runs_ahead: int
    """Number of runs ahead of this one, excluding runs that are admitted now. If this run waits for a slot of its
    shared pool, only waiting runs of the pool are counted. If it waits for anything else, runs that wait for a slot of
    their pool are not counted.
    """
    waits_for: Reason | None
    """Reason why the run waits, or None if it is admitted now."""
    blocked_time: datetime | None = None
    starts_pool: bool = False
    """True if the run would be the first of its shared pool, so that it needs the resources of the pool as well."""


@dataclass
class _Usage:
    """Slots and resources that are in use or reserved."""

    limits: QueueLimits
    runs: Counter[str] = field(default_factory=Counter)
    total: int = 0
    free: dict[str, int] = field(default_factory=dict)
    is_known: bool = True
    used: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    """Used resources by namespace."""
    unknown: set[str] = field(default_factory=set)
    """Namespaces with a run whose demand is unknown."""
    pools: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of slots of each shared pool that are in use or reserved."""
    started_pools: set[tuple[str, str]] = field(default_factory=set)
    """Shared pools of runs that have their slots."""
    reserved_pools: set[tuple[str, str]] = field(default_factory=set)
    """Shared pools whose resources are reserved for a waiting run."""

    def starts_pool(self, run: QueuedRun) -> bool:
        """Return whether the run would be the first of its shared pool."""
        return run.pool is not None and run.pool.key not in self.started_pools

    def demand_of(self, run: QueuedRun) -> Demand | None:
        """Return the run's demand, plus its shared pool's demand if the run starts the pool. None if the demand is
        unknown.
        """
        if run.demand is None or run.pool is None or not self.starts_pool(run):
            return run.demand
        return Counter(run.demand) + Counter(run.pool.demand)

    def add(self, run: QueuedRun) -> None:
        demand = self.demand_of(run)
        if run.pool is not None:
            self.started_pools.add(run.pool.key)
        self._count(run, demand)

    def reserve(self, run: QueuedRun, *, only_in_namespace: bool) -> None:
        """Reserve the resources of a waiting run. The resources of a shared pool are reserved once.

        If `only_in_namespace`, only the namespace's resources are reserved. Otherwise the run's slot and the platform's
        resources are reserved as well.
        """
        demand = self.demand_of(run)
        if run.pool is not None and run.pool.key in self.reserved_pools:
            demand = run.demand
        if run.pool is not None:
            self.reserved_pools.add(run.pool.key)
        if only_in_namespace:
            self.used[run.key.namespace].update(demand or {})
        else:
            self._count(run, demand)

    def _count(self, run: QueuedRun, demand: Demand | None) -> None:
        namespace = run.key.namespace
        if run.pool is not None:
            self.pools[run.pool.key] += 1
        self.runs[namespace] += 1
        self.total += 1
        self.is_known = self.is_known and (demand is not None or not self.free)
        for name in self.free:
            self.free[name] -= (demand or {}).get(name, 0)
        self.used[namespace].update(demand or {})
        if demand is None:
            self.unknown.add(namespace)

    def what_lacks(self, run: QueuedRun) -> Reason | None:
        namespace, maximum = run.key.namespace, self.limits.settings.max_runs
        limit, own = self.limits.runs_of(namespace), self.limits.namespaces.get(namespace, {})
        if run.pool is not None and self.pools[run.pool.key] >= run.pool.slots:
            return Reason.POOL_FULL
        if limit is not None and self.runs[namespace] >= limit:
            return Reason.NAMESPACE_LIMIT_REACHED
        used, demand = self.used[namespace], self.demand_of(run) or {}
        exceeds = any(demand.get(name) and used[name] + demand[name] > whole for name, whole in own.items())
        if own and (exceeds or namespace in self.unknown):
            return Reason.NAMESPACE_LIMIT_REACHED
        if maximum is not None and self.total >= maximum:
            return Reason.RUN_LIMIT_REACHED
        lacks = any(amount > self.free[name] for name, amount in demand.items() if amount and name in self.free)
        if lacks or not self.is_known:
            return Reason.WAITING_FOR_CAPACITY
        # A run ahead of this one may need the last slot of the same pool.
        return Reason.POOL_FULL if run.pool is not None and namespace in self.unknown else None


class _DominantShares:
    """Dominant shares of the namespaces."""

    def __init__(self, limits: QueueLimits) -> None:
        self._limits = limits
        self._used: defaultdict[str, Counter[str]] = defaultdict(Counter)
        maximum = limits.settings.max_runs
        # Without platform limits, compare the number of runs.
        self._of = dict(limits.capacity) or {}
        if maximum is not None or not self._of:
            self._of[""] = maximum or 1

    def add(self, namespace: str, demand: Demand | None) -> None:
        self._used[namespace].update(demand or {})
        self._used[namespace][""] += 1

    def share(self, namespace: str) -> float:
        # Dividing integers rounds correctly, so equal shares compare equal.
        used, weight = self._used[namespace], self._limits.weight_of(namespace)
        return max(used[name] / (whole * weight) for name, whole in self._of.items())


def queue_positions(
    placed: Iterable[QueuedRun], waiting: Iterable[QueuedRun], limits: QueueLimits, now: datetime
) -> dict[str, QueuePosition]:
    """Return the position of each waiting run by uid, in queue order. The order of the runs in `placed` and `waiting`
    does not affect the result.
    """
    usage, shares = _Usage(limits, free=dict(limits.capacity)), _DominantShares(limits)
    for one in placed:
        shares.add(one.key.namespace, usage.demand_of(one))
        usage.add(one)
    turns: dict[str, QueuePosition] = {}
    ahead, has_first_blocked = 0, False
    ahead_in_pool: Counter[tuple[str, str]] = Counter()
    for run in _in_order(waiting, shares, usage, now):
        lacks, starts_pool = usage.what_lacks(run), usage.starts_pool(run)
        blocked_time = run.blocked_time
        if lacks is None:
            usage.add(run)
            turns[run.uid] = QueuePosition(ahead, None, starts_pool=starts_pool)
            continue
        if lacks is Reason.WAITING_FOR_CAPACITY and usage.is_known and not has_first_blocked:
            blocked_time, has_first_blocked = blocked_time or now, True
        keeps = not limits.settings.backfill_seconds or _is_first_of_its_priority(blocked_time, limits, now)
        is_of_namespace = lacks is Reason.NAMESPACE_LIMIT_REACHED
        if is_of_namespace or (keeps and lacks is not Reason.POOL_FULL):
            usage.reserve(run, only_in_namespace=is_of_namespace)
        # A run that waits for its pool blocks only the runs of this pool.
        full = run.pool if lacks is Reason.POOL_FULL else None
        others = ahead if full is None else ahead_in_pool[full.key]
        turns[run.uid] = QueuePosition(others, lacks, blocked_time, starts_pool)
        ahead += full is None
        if run.pool is not None:
            ahead_in_pool[run.pool.key] += 1
    return turns


def next_change(turns: Iterable[QueuePosition], limits: QueueLimits, now: datetime) -> datetime | None:
    """Return the time at which the order of the queue changes without an event, or None."""
    times = (turn.blocked_time + limits.backfill for turn in turns if turn.blocked_time is not None)
    return min((time for time in times if time > now), default=None)


def exceeded_capacity(demand: Demand, limits: QueueLimits, namespace: str) -> list[str]:
    """Return the resources whose demand exceeds what the namespace can ever have."""
    return sorted(name for name, whole in limits.capacity_for(namespace).items() if demand.get(name, 0) > whole)


def _is_first_of_its_priority(blocked_time: datetime | None, limits: QueueLimits, now: datetime) -> bool:
    return blocked_time is not None and now - blocked_time >= limits.backfill


_Rank = tuple[int, int, datetime, datetime, str]


def _in_order(
    waiting: Iterable[QueuedRun], shares: _DominantShares, usage: _Usage, now: datetime
) -> Iterable[QueuedRun]:
    """Yield the runs in order. Each yielded run counts toward the share of its namespace."""
    limits = usage.limits

    def rank(run: QueuedRun) -> _Rank:
        is_first = _is_first_of_its_priority(run.blocked_time, limits, now)
        first_time = run.blocked_time if is_first and run.blocked_time else run.since
        return (-run.priority, 0 if is_first else 1, first_time, run.since, run.uid)

    by_namespace: defaultdict[str, list[tuple[_Rank, QueuedRun]]] = defaultdict(list)
    for run in waiting:
        by_namespace[run.key.namespace].append((rank(run), run))
    heads: list[tuple[int, int, float, datetime, datetime, str, str]] = []

    def push(namespace: str) -> None:
        if by_namespace[namespace]:
            priority, place, first_time, since, uid = by_namespace[namespace][-1][0]
            share = shares.share(namespace) if place else 0.0
            heapq.heappush(heads, (priority, place, share, first_time, since, uid, namespace))

    for namespace, runs in by_namespace.items():
        runs.sort(key=lambda pair: pair[0], reverse=True)
        push(namespace)
    while heads:
        namespace = heapq.heappop(heads)[-1]
        run = by_namespace[namespace].pop()[1]
        # Without the pool once the caller has admitted the run.
        demand = usage.demand_of(run)
        yield run
        shares.add(namespace, demand)
        push(namespace)


def pool_full_problem(pool: PoolSlots, *, is_client: bool = False) -> Problem:
    """Return the problem to report for a run that waits for a slot of its shared pool.

    Unless `is_client`, the message suggests `spec.infrastructure.dedicated`, which a run with `driver: Client` cannot
    use.
    """
    choice = " A new run with `spec.infrastructure.dedicated` gets a trainer and engines of its own."
    slots = "The only slot" if pool.slots == 1 else f"All {pool.slots} slots"
    return Problem(
        reason=Reason.POOL_FULL,
        message=f"{slots} of the shared pool {pool.name} {'is' if pool.slots == 1 else 'are'} in use "
        "(`sharing.maxRuns` of the RLModel). "
        f"The run starts when its turn comes, after other runs of the pool end or are suspended."
        f"{'' if is_client else choice}",
    )


def waiting_problem(
    reason: Reason, namespace: str, demand: Demand, limits: QueueLimits, pool: PoolSlots | None = None
) -> Problem:
    """Return the problem to report for a run that waits for a slot. `pool` is the shared pool that the run starts."""
    return Problem(reason=reason, message=_waiting_message(reason, namespace, demand, limits, pool))


def exceeding_problem(exceeded: Sequence[str], request: SlotRequest, limits: QueueLimits, namespace: str) -> Problem:
    """Return the problem to report for a run that can never be admitted. For each exceeded resource, the message lists
    how much each component requests.
    """
    total = request.total
    parts = []
    for name in exceeded:
        needs = ", ".join(
            f"{component} {from_millis(requests[name])}"
            for component, requests in request.components.items()
            if requests.get(name)
        )
        own, whole = limits.namespaces.get(namespace, {}), limits.capacity_for(namespace)[name]
        owner = f"namespace {namespace}" if own.get(name) == whole else "this platform"
        parts.append(f"{from_millis(total[name])} {name} ({needs}), but {owner} has {from_millis(whole)} for all runs")
    return Problem(
        reason=Reason.EXCEEDS_CAPACITY,
        message=f"The run's pods request {'; '.join(parts)}. Start a new run with an RLModel that requests less, or "
        "with fewer environments, or ask the platform team to raise `queue.capacity` (or `capacity` in "
        "`queue.namespaces`) or to lower the requests of the RLModel.",
    )


def _needed(demand: Demand, pool: PoolSlots | None, names: Iterable[str]) -> str:
    """Return the demand for the resources in `names` as text, including the shared pool that the run starts."""
    names = sorted(names)
    own = ", ".join(f"{from_millis(demand[name])} {name}" for name in names if demand.get(name))
    if pool is None or not any(pool.demand.get(name) for name in names):
        return own
    shared = ", ".join(f"{from_millis(pool.demand[name])} {name}" for name in names if pool.demand.get(name))
    return f"{own}{' and ' if own else ''}{shared} for its shared pool {pool.name}"


def _waiting_message(
    reason: Reason, namespace: str, demand: Demand, limits: QueueLimits, pool: PoolSlots | None
) -> str:
    if reason is Reason.NAMESPACE_LIMIT_REACHED:
        limit = limits.runs_of(namespace)
        if limit == 0:
            return (
                f"Namespace {namespace} may not start runs at the moment (`queue.namespaces` sets its `maxRuns` to 0). "
                "Ask the platform team."
            )
        own = limits.namespaces.get(namespace, {})
        parts = [] if limit is None else ["1 run with pods" if limit == 1 else f"{limit} runs with pods"]
        parts += [f"{from_millis(own[name])} {name}" for name in sorted(own)]
        needed = _needed(demand, pool, own)
        return (
            f"Namespace {namespace} may have at most {' and '.join(parts)} at a time, and what is left is not enough "
            f"for this run{f', which needs {needed}' if needed else ''}. The run starts when its turn comes, after "
            "other runs in the namespace end or are suspended."
        )
    if reason is Reason.RUN_LIMIT_REACHED:
        runs = "1 run" if limits.settings.max_runs == 1 else f"{limits.settings.max_runs} runs"
        return (
            f"On this platform, at most {runs} may have pods at a time, and no slot is left: all are in use or "
            f"reserved for runs ahead of this one. The run starts when its turn comes."
        )
    needed = _needed(demand, pool, limits.capacity)
    whole = ", ".join(f"{from_millis(amount)} {name}" for name, amount in sorted(limits.capacity.items()))
    return (
        f"The run needs {needed or 'a slot'}, but not enough is free: this platform has {whole} for all runs, "
        "including what is in use or reserved for runs ahead of this one. The run starts when its turn comes."
    )
