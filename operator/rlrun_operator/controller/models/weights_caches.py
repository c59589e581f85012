"""Counts weights caches by state, and deletes unused caches."""

import logging
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence

from rlrun.constants import MODEL_ANNOTATION, SERVING_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CLAIM, DEPLOYMENT, JOB, NETWORK_POLICY, POD, RLMODEL, SERVICE_ACCOUNT, ResourceKind
from rlrun.kube.objects import Obj, annotation, true_condition
from rlrun.kube.pods import Pod, is_leaving
from rlrun.kube.references import find_model
from rlrun.protocol.problem import Problem

from rlrun_operator.cluster.tenants import TenancyProblem, no_problem, tenants_only
from rlrun_operator.controller.models.model_status import CacheStates, uses_model
from rlrun_operator.resources.models.model_volumes import cache_claim, is_cache_claim
from rlrun_operator.resources.weights_cache import (
    SELECTOR,
    CacheIdentity,
    has_fetched,
    identity_of,
    owners,
)

log = logging.getLogger(__name__)

KEPT_METADATA = ("name", "namespace", "uid", "deletionTimestamp", "ownerReferences")


async def sweep_caches(
    cluster: AsyncKubeClient,
    runs: Iterable[Obj],
    namespaces: Sequence[str | None] = (None,),
    tenancy_problem: TenancyProblem = no_problem,
) -> Mapping[str, CacheStates] | None:
    """Delete weights caches that no RLModel, run or serving pool uses. Returns the states of the other caches by claim
    name, or None if a request failed.

    `runs` are all runs in `namespaces`. Finished and suspended runs, and runs that are being deleted, use no cache.
    None in `namespaces` means all namespaces.
    """
    try:
        models = await cluster.list(RLMODEL)
        used = {
            (run["metadata"].get("namespace"), (run.get("spec") or {}).get("model")) for run in runs if uses_model(run)
        }
        states: dict[str, Counter[str]] = defaultdict(Counter)
        for namespace in namespaces:
            claims = tenants_only(await _list(cluster, CLAIM, namespace), tenancy_problem)
            if not claims:
                continue
            pools = await cluster.list(DEPLOYMENT, namespace, {SERVING_LABEL: ""})
            mounted = {(pool["metadata"]["namespace"], claim) for pool in pools for claim in _mounted_claims(pool)}
            jobs = {
                (j["metadata"]["namespace"], j["metadata"]["name"]): j for j in await _list(cluster, JOB, namespace)
            }
            is_busy = any(true_condition(job, "Complete") is None for job in jobs.values())
            pods = [Pod(obj) for obj in await _list(cluster, POD, namespace)] if is_busy else []
            fetched = {uid for pod in pods if has_fetched(pod) for uid in owners(pod)}
            for claim in claims:
                identity = identity_of(claim)
                if not is_cache_claim(identity.name):
                    continue
                if (identity.namespace, identity.name) not in mounted and is_unused(identity, models, used):
                    await _delete(cluster, identity, claim)
                elif not is_leaving(claim):
                    states[identity.name][_state(jobs.get((identity.namespace, identity.name)), fetched)] += 1
    except ApiError as error:
        log.warning("The weights caches could not be swept; retrying at the next resync: %s", error)
        return None
    return {name: CacheStates(**counts) for name, counts in states.items()}


async def _list(cluster: AsyncKubeClient, kind: ResourceKind, namespace: str | None) -> list[Obj]:
    # Users can create large objects with these labels, so pages are reduced early.
    pages = cluster.all_pages(kind, namespace, SELECTOR)
    return [_kept_parts(obj) async for page, _ in pages for obj in page]


async def _delete(cluster: AsyncKubeClient, identity: CacheIdentity, claim: Obj) -> None:
    if is_leaving(claim):
        return
    log.info("Deleting the unused weights of %s in namespace %s", identity.model, identity.namespace)
    # Users can create claims with these labels, so only claims with the expected name are deleted.
    for kind in (JOB, NETWORK_POLICY, SERVICE_ACCOUNT):
        obj = await cluster.read_listed(kind, identity.namespace, identity.name)
        if obj is not None and identity.labels().items() <= (obj["metadata"].get("labels") or {}).items():
            await cluster.delete(kind, identity.namespace, identity.name, obj["metadata"]["uid"])
    await cluster.delete(CLAIM, identity.namespace, identity.name, claim["metadata"]["uid"])


def is_unused(identity: CacheIdentity, models: Iterable[Obj], used: Collection[tuple[object, object]]) -> bool:
    """Return whether neither an RLModel nor a run in the namespace uses the cache.

    `used` contains namespace and model of the runs that use a model (`uses_model`). If the RLModel is invalid, its
    current cache is unknown, so the cache counts as used.
    """
    if (identity.namespace, identity.model) in used:
        return False
    same = [m for m in models if m["spec"].get("id") == identity.model]
    found = find_model(identity.model, same)
    return not same or (not isinstance(found, Problem) and cache_claim(found) != identity.name)


def _kept_parts(obj: Obj) -> Obj:
    """Return the parts of an object that the sweep needs."""
    metadata = {key: obj["metadata"][key] for key in KEPT_METADATA if key in obj["metadata"]}
    model = {MODEL_ANNOTATION: annotation(obj, MODEL_ANNOTATION)}
    return {"metadata": {**metadata, "annotations": model}, "status": obj.get("status") or {}}


def _mounted_claims(pool: Obj) -> Iterable[str]:
    """Yield the names of the claims that a pool's engines mount. They may differ from the model's current claim."""
    for volume in pool["spec"]["template"]["spec"].get("volumes") or []:
        if "persistentVolumeClaim" in volume:
            yield volume["persistentVolumeClaim"]["claimName"]


def _state(job: Obj | None, fetched: Collection[str]) -> str:
    """Return the state of a cache. `fetched` has the uids of the Jobs whose pods have downloaded all files."""
    if job is not None and (true_condition(job, "Complete") is not None or job["metadata"]["uid"] in fetched):
        return "filled"
    return "failed" if true_condition(job, "Failed") is not None else "downloading"
