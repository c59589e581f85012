"""Reads the state of a model's weights cache for runs and serving pools."""

from rlrun.constants import WEIGHTS_LABEL
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.kinds import CLAIM, EVENT, JOB, POD
from rlrun.kube.objects import true_condition
from rlrun.kube.pods import Pod

from rlrun_operator.resources.weights_cache import CacheIdentity, ObservedWeights, owners


async def read_weights(cluster: AsyncKubeClient, identity: CacheIdentity | None) -> ObservedWeights:
    """Return the observed state of a cache, or an empty state if `identity` is None. Raises ApiError."""
    if identity is None:
        return ObservedWeights()
    claim = await cluster.read_listed(CLAIM, identity.namespace, identity.name)
    job = await cluster.read_listed(JOB, identity.namespace, identity.name)
    if true_condition(job, "Complete") is not None:
        return ObservedWeights(claim, job)
    found = [Pod(obj) for obj in await cluster.list(POD, identity.namespace, {WEIGHTS_LABEL: identity.name})]
    if job is None:
        return ObservedWeights(claim, former_pods=tuple(found))
    uid = job["metadata"]["uid"]
    pods = tuple(pod for pod in found if uid in owners(pod))
    events = (
        []
        if any(pod.is_alive for pod in pods)
        else await cluster.list(EVENT, identity.namespace, fields=f"involvedObject.uid={uid}")
    )
    return ObservedWeights(claim, job, pods, tuple(events))
