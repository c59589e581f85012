"""Tenants: the namespaces in which the operator and rlrun-server have rights.

A namespace is a tenant while it has the label configured in the settings. The operator creates a RoleBinding for each
tenant role there, and deletes these RoleBindings when the label is removed. The operator has no other rights in the
namespaces of tenants, and the chart's admission policy prevents it from creating other RoleBindings.
"""

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable

from rlrun.constants import FIELD_MANAGER, MANAGED_BY_LABEL, Reason
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.informer import CachedObject, ObjectChange
from rlrun.kube.kinds import NAMESPACE, ROLE_BINDING, SELF_ACCESS_REVIEW, ResourceKind
from rlrun.kube.objects import Obj
from rlrun.kube.pods import is_leaving
from rlrun.protocol.problem import Problem

from rlrun_operator.cluster.informers import MANAGED, Informers
from rlrun_operator.config.settings import OperatorSettings, TenantRole
from rlrun_operator.runtime.bounded_gather import bounded_gather

log = logging.getLogger(__name__)

NAMESPACES = 8
"""Maximum number of namespaces whose RoleBindings are written concurrently."""
RETRY_SECONDS = 5.0
EFFECT_TRIES = 40
EFFECT_PAUSE = 0.25
"""Seconds between two of the EFFECT_TRIES checks of whether the API server applies a new RoleBinding."""

TenancyProblem = Callable[[str], Problem | None]
"""Function that returns why the operator does nothing in a namespace, or None if the namespace is a tenant."""


class Tenants:
    """Namespaces that are tenants of one operator. Not thread-safe: use from one event loop only."""

    def __init__(self, settings: OperatorSettings, informers: Informers) -> None:
        self._settings = settings
        self._informers = informers
        self._has_label = bool(settings.tenant_labels)
        self._dirty = asyncio.Event()
        self._changed: set[str] = set()
        """Namespaces that gained or lost the tenant label since RoleBindings were last reconciled."""
        self._missing: dict[str, str] = {}
        """Tenants whose RoleBindings could not be created, with the error."""
        self._bound: set[str] | None = None
        """Tenants with RoleBindings. None until RoleBindings have been reconciled once; until then, a missing
        RoleBinding is noticed only when a request fails.
        """

    def problem(self, namespace: str) -> Problem | None:
        """Return the reason why the operator does nothing in the namespace, or None if the namespace is a tenant."""
        if not self._has_label:
            return None
        label = self._settings.namespace_label
        if namespace == self._settings.lease_namespace:
            message = (
                f"Namespace {namespace} belongs to the operator and contains the platform's keys, so runs and "
                f"adapters in it are ignored. Use another namespace."
            )
        elif (informer := self._informers.find(NAMESPACE, None)) is None or informer.find("", namespace) is None:
            message = (
                f"Namespace {namespace} is not a tenant: it lacks the label {label}, so the operator has no rights in "
                f"it. Nothing is created, and existing pods keep running without the operator. Ask a cluster "
                f"administrator to set the label: `kubectl label namespace {namespace} {label}`."
            )
        elif self._bound is None or namespace in self._bound:
            return None
        else:
            error = self._missing.get(namespace, "they are being created")
            names = " and ".join(role.cluster_role for role in self._settings.tenant_roles)
            message = (
                f"The operator has no rights in namespace {namespace} yet, because its RoleBindings {names} are not in "
                f"effect: {error}. The operator retries."
            )
        return Problem(reason=Reason.NAMESPACE_NOT_TENANT, message=message)

    def on_change(self, kind: ResourceKind, change: ObjectChange[CachedObject]) -> None:
        """Record a namespace that may have gained or lost the tenant label. The informers call this method after each
        change.
        """
        if kind == NAMESPACE:
            self._changed.add(change.cached.name)
            self._dirty.set()

    async def follow(self, cluster: AsyncKubeClient, on_tenancy: Callable[[str], None]) -> None:
        """Maintain the RoleBindings until cancelled. Calls `on_tenancy` for each namespace that may have become a
        tenant or stopped being one, and for each tenant whose RoleBindings were missing.
        """
        await self._informers.until_synced(NAMESPACE)
        while True:
            self._dirty.clear()
            try:
                await self.bind(cluster, on_tenancy)
            except ApiError as error:
                log.warning("The tenants' RoleBindings could not be reconciled; retrying: %s", error)
                await asyncio.sleep(RETRY_SECONDS)
                continue
            pause = RETRY_SECONDS if self._missing else self._settings.resync_seconds
            try:
                async with asyncio.timeout(pause):
                    await self._dirty.wait()
            except TimeoutError:
                pass

    async def bind(self, cluster: AsyncKubeClient, on_tenancy: Callable[[str], None]) -> None:
        """Create missing RoleBindings, and delete those in namespaces that lack the tenant label.

        Raises ApiError if RoleBindings cannot be listed or deleted. Failed creations are logged, and retried by the
        next call.
        """
        changed = set(self._changed)
        tenants = {n: ends for n, ends in self._labelled_namespaces().items() if n != self._settings.lease_namespace}
        roles = {role.cluster_role: role for role in self._settings.tenant_roles}
        existing: set[tuple[str, str]] = set()
        for binding in await cluster.list(ROLE_BINDING, None, MANAGED) if roles else ():
            namespace, name = binding["metadata"]["namespace"], binding["metadata"]["name"]
            if name in roles and namespace in tenants:
                existing.add((namespace, name))
            elif name in roles:
                await cluster.delete(ROLE_BINDING, namespace, name, binding["metadata"].get("uid"))
        # Nothing can be created in a namespace that is being deleted, and the namespace controller deletes all of its
        # objects.
        missing = {
            namespace: [role for name, role in roles.items() if (namespace, name) not in existing and not is_ending]
            for namespace, is_ending in tenants.items()
        }
        before = set(tenants) if self._bound is None else self._bound
        self._bound = {namespace for namespace in tenants if not missing[namespace]}
        self._missing = {namespace: error for namespace, error in self._missing.items() if namespace in tenants}
        wanting = [namespace for namespace in sorted(tenants) if missing[namespace]]
        await bounded_gather(functools.partial(self._grant, cluster, missing), wanting, NAMESPACES)
        self._changed -= changed
        for namespace in sorted(changed | (self._bound ^ before) | {*wanting}):
            on_tenancy(namespace)

    async def _grant(self, cluster: AsyncKubeClient, missing: dict[str, list[TenantRole]], namespace: str) -> None:
        assert self._bound is not None
        try:
            for role in missing[namespace]:
                await _create(cluster, role_binding(role, namespace, self._settings.lease_namespace))
            await _until_effective(cluster, namespace)
        except ApiError as error:
            log.warning("The RoleBindings of namespace %s could not be created; retrying: %s", namespace, error)
            self._missing[namespace] = str(error)
            return
        log.info("Namespace %s is a tenant", namespace)
        self._missing.pop(namespace, None)
        self._bound.add(namespace)

    def _labelled_namespaces(self) -> dict[str, bool]:
        """Return the namespaces with the label, and whether each is being deleted."""
        informer = self._informers.find(NAMESPACE, None)
        return {} if informer is None else {n.name: n.data is not None and is_leaving(n.read()) for n in informer.all()}


def role_binding(role: TenantRole, namespace: str, account_namespace: str) -> Obj:
    """Return the RoleBinding of a role in the namespace of a tenant."""
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {
            "name": role.cluster_role,
            "namespace": namespace,
            "labels": {MANAGED_BY_LABEL: FIELD_MANAGER, "app.kubernetes.io/part-of": "rlrun"},
        },
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role.cluster_role},
        "subjects": [{"kind": "ServiceAccount", "name": role.account, "namespace": account_namespace}],
    }


async def _create(cluster: AsyncKubeClient, binding: Obj) -> None:
    try:
        await cluster.create(binding)
    except ApiError as error:
        if error.status != 409:
            raise


async def _until_effective(cluster: AsyncKubeClient, namespace: str) -> None:
    """Wait until the API server applies the new rights: it receives RoleBindings through a watch, with a delay. Raises
    ApiError after EFFECT_TRIES checks.
    """
    attributes = {"namespace": namespace, "verb": "create", "group": "batch", "resource": "jobs"}
    review = {"apiVersion": SELF_ACCESS_REVIEW.api_version, "kind": SELF_ACCESS_REVIEW.kind, "metadata": {}}
    for _ in range(EFFECT_TRIES):
        answer = await cluster.create({**review, "spec": {"resourceAttributes": attributes}})
        if answer["status"].get("allowed"):
            return
        await asyncio.sleep(EFFECT_PAUSE)
    raise ApiError(
        403,
        "Forbidden",
        "they exist but grant no rights yet",
        action=f"use the RoleBindings of {namespace}",
    )


def tenants_only(objects: Iterable[Obj], problem: TenancyProblem) -> list[Obj]:
    """Return the objects whose namespaces are tenants."""
    return [obj for obj in objects if problem(obj["metadata"]["namespace"]) is None]


def no_problem(_: str) -> Problem | None:
    """Return None: every namespace is a tenant. Default of parameters of type TenancyProblem."""
    return None
