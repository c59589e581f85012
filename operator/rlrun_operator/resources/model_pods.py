"""Pods of an RLModel as a run would have them, to ask the API server whether it accepts them."""

from rlrun.api.model import RLModelSpec
from rlrun.api.run import RLRunSpec
from rlrun.constants import Role
from rlrun.kube.objects import Obj
from rlrun.kube.pods import role_of

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.demand import workloads
from rlrun_operator.resources.platform import resolve


def model_pods(settings: OperatorSettings, model: RLModelSpec) -> list[Obj]:
    """Return a pod of the trainer and one of the engines, in the operator's namespace.

    They have the namespace's default ServiceAccount, because that of a run does not exist.
    """
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
