"""Checks the pods of an RLModel with a dry run in the API server, before a run needs them."""

from rlrun.api.model import RLModelSpec
from rlrun.api.run import RLRunSpec
from rlrun.constants import ConditionType, Reason, Role
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.objects import Obj
from rlrun.kube.pods import role_of
from rlrun.kube.references import find_model
from rlrun.kube.refusals import find_refusal
from rlrun.protocol.problem import Problem

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.actions import ConditionChange
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.demand import workloads
from rlrun_operator.resources.platform import resolve

UNASKED = ("exceeded quota", "cannot create resource", "does not support dry run")
"""Parts of error messages that say nothing about the pod: quota, permissions and webhooks of the operator's
namespace.
"""
OF_NAMESPACE = ("usage per ", "limit to request ratio per ", "violates PodSecurity")
"""Parts of error messages about the LimitRange or Pod Security level of the operator's namespace. The namespaces of
runs may have different ones.
"""


class ModelPodCheck:
    """Dry run of trainer and engine pods in the operator's namespace.

    Each generation of a model is checked until the API server accepts its pods. Refused pods are checked again, because
    a missing object such as a RuntimeClass may be created later. Accepted pods are not checked again, because settings
    change only with a restart of the operator.
    """

    def __init__(self, settings: OperatorSettings) -> None:
        self._settings = settings
        self._accepted: dict[str, int] = {}
        """Accepted generation by uid of the model."""

    async def check(self, cluster: AsyncKubeClient, model: Obj) -> ConditionChange | None:
        """Check the model's pods. Returns the condition, or None if the model is invalid or its pods were accepted
        before.
        """
        metadata = model["metadata"]
        uid, generation = str(metadata["uid"]), int(metadata.get("generation") or 0)
        if self._accepted.get(uid) == generation:
            return None
        spec = find_model(str(model["spec"]["id"]), (model,))
        if isinstance(spec, Problem):
            return None
        try:
            for pod in model_pods(self._settings, spec):
                await cluster.dry_run(pod)
        except ApiError as error:
            return _explain(spec, pod, error)
        self._accepted[uid] = generation
        return ConditionChange(ConditionType.POD_TEMPLATE_VALID, True, Reason.VALID)


def model_pods(settings: OperatorSettings, model: RLModelSpec) -> list[Obj]:
    """Return a trainer pod and an engine pod in the operator's namespace, with the default ServiceAccount."""
    identity = RunIdentity(settings.lease_namespace, "check", "check", 1, 1)
    run = RLRunSpec.model_validate({"model": model.id, "env": [{"id": "check/check"}]})
    pods = []
    for obj in workloads(identity, settings, resolve(identity, settings, run, model, None)):
        role, template = role_of(obj), obj["spec"]["template"]
        if role in (Role.trainer, Role.inference):
            metadata = {**template["metadata"], "name": f"{role}-check", "namespace": settings.lease_namespace}
            spec = {**template["spec"], "serviceAccountName": "default"}
            pods.append({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    return pods


def _explain(model: RLModelSpec, pod: Obj, error: ApiError) -> ConditionChange:
    kind = ConditionType.POD_TEMPLATE_VALID
    if find_refusal(pod, error) is None or any(part in error.message for part in UNASKED):
        cause = error.message.rstrip(".")
        message = f"The API server could not check the pods of {model.id}: {cause}. The operator retries."
        return ConditionChange(kind, None, Reason.API_SERVER_UNAVAILABLE, message)
    role = pod["metadata"]["name"].removesuffix("-check")
    if any(part in error.message for part in OF_NAMESPACE):
        message = (
            f"The pods of `spec.{role}` could not be fully checked, because the operator's namespace refuses them: "
            f"{error.message.rstrip('.')}. The namespaces of runs may have another LimitRange or Pod Security level, "
            "and accept the pods."
        )
        return ConditionChange(kind, None, Reason.OBJECT_REFUSED, message)
    message = (
        f"The API server refuses the pods of `spec.{role}`: {error.message.rstrip('.')}. Correct `spec.{role}`, or "
        f"create the missing object."
    )
    return ConditionChange(kind, False, Reason.OBJECT_REFUSED, message)
