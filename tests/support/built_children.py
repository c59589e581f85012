"""The objects of a run and of a serving pool, as the operator builds them."""

import json
from typing import Any

from rlrun.api.model import RLModelSpec
from rlrun.api.run import RLRunSpec
from rlrun.constants import LOG_HOLD_CONTAINER
from rlrun.kube.objects import Obj
from rlrun.protocol.resolved import ArtifactRef, ResolvedRun
from rlrun.protocol.serving import DesiredAdapters, ServedAdapter
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.access.storage_access import StorageAccess
from rlrun_operator.resources.base.naming import RunIdentity
from rlrun_operator.resources.children import children
from rlrun_operator.resources.platform import resolve
from rlrun_operator.resources.serving_pool import PoolCredentials, PoolIdentity, pool_children

from tests.support.cluster_objects import STORAGE_KEY

Children = dict[tuple[str, str], Obj]
IDENTITY = RunIdentity("team", "reverse", "uid-1", 2, 7)
POOL = PoolIdentity("team", "a/b")
HUB = f"hf://a/b@{'0' * 40}"
SOURCES = ("s3://rlrun/models/a", HUB, "pvc://claim/a", f"oci://r/a@sha256:{'0' * 64}")
"""A base model of each kind."""
BASE: Obj = {"bucket": "rlrun", "credentialsSecret": {"namespace": "sys", "name": "s3"}}
SETTINGS = OperatorSettings.model_validate(
    {"s3": {**BASE, "endpoint": "http://s3:8333", "prefix": "prod"}, "imagePullSecrets": ["pull"]}
)
ORDER = DesiredAdapters(base="a/b", adapters=[ServedAdapter(name="a/b:one", uri="s3://rlrun/x", step=3)])
CREDENTIALS = PoolCredentials("token-of-the-pool", "key-of-its-users", "key-of-the-server")
ROLES = {
    "reverse-trainer": "trainer",
    "reverse-trainer-a2": "trainer",
    "reverse-inference": "inference",
    "reverse-env-0": "environments",
    "reverse-env-1": "environments",
    "reverse-eval-0": "environments",
    "reverse-orchestrator-a2": "orchestrator",
    POOL.name: "serving",
}
MAIN = {
    "trainer": "trainer",
    "inference": "vllm",
    "environments": "environment",
    "orchestrator": "orchestrator",
    "serving": "vllm",
}
"""The main container of each role."""


def changed(**settings: Any) -> OperatorSettings:
    """The settings with these keys of their file."""
    return OperatorSettings.model_validate({**SETTINGS.to_json_dict(), **settings})


def resolved(
    model: Obj | None = None, warm_start_from: str | None = None, *, pool: str | None = None, **run: Any
) -> ResolvedRun:
    spec = {
        "model": "a/b",
        "sampling": {"maxTokens": 8},
        "env": [{"id": "o/e", "args": {"n": 1}, "version": "1.0"}, {"id": "o/f", "name": "second"}],
        "eval": {"env": [{"id": "o/g"}]},
        "envFrom": [{"secretRef": {"name": "judge"}}],
        "infrastructure": {"computeSize": "S"},
        **run,
    }
    full = {"id": "a/b", "source": SOURCES[0], "seqLen": 512, **(model or {})}
    base = RLModelSpec.model_validate(full)
    warm_start = None if warm_start_from is None else ArtifactRef(warm_start_from)
    return resolve(IDENTITY, SETTINGS, RLRunSpec.model_validate(spec), base, warm_start, pool=pool)


def build(
    model: Obj | None = None, *, settings: OperatorSettings = SETTINGS, access: Obj | None = None, **run: Any
) -> Children:
    """The children of a run by kind and name. `access`: further arguments of `children`."""
    found = children(IDENTITY, settings, resolved(model, **run), STORAGE_KEY, **(access or {}))
    return {(c["kind"], c["metadata"]["name"]): c for c in found}


def build_pool(
    settings: Obj | None = None,
    order: DesiredAdapters = ORDER,
    credentials: PoolCredentials = CREDENTIALS,
    **model: Any,
) -> dict[str, Obj]:
    """The objects of a serving pool by kind."""
    spec = RLModelSpec.model_validate({"id": "a/b", "source": SOURCES[0], "seqLen": 512, **model})
    full = OperatorSettings.model_validate({"s3": BASE, **(settings or {})})
    storage = StorageAccess(full, b"k" * 32, POOL.namespace, POOL.name)
    found = pool_children(POOL, full, spec, order, storage, credentials)
    users = POOL.api_key_secret
    named = {"Secret of users" if c["metadata"]["name"] == users else c["kind"]: c for c in found}
    assert len(named) == len(found)
    return named


def templates(found: Children) -> dict[str, Obj]:
    return {n: c["spec"]["template"] for (k, n), c in found.items() if k in ("ReplicaSet", "Job")}


def pod_templates(settings: Obj | None = None, model: Obj | None = None, **run: Any) -> dict[str, Obj]:
    """The pod templates of a run and of a serving pool, by the names of their workloads."""
    full = OperatorSettings.model_validate({"s3": BASE, **(settings or {})})
    plan = resolved(model, **run)
    storage = StorageAccess(full, STORAGE_KEY, POOL.namespace, POOL.name)
    made = [
        *children(IDENTITY, full, plan, STORAGE_KEY),
        *pool_children(POOL, full, plan.model, ORDER, storage, CREDENTIALS),
    ]
    kinds = ("ReplicaSet", "Deployment", "Job")
    return {c["metadata"]["name"]: c["spec"]["template"] for c in made if c["kind"] in kinds}


def pods(settings: Obj | None = None, model: Obj | None = None, **run: Any) -> dict[str, Obj]:
    """The specs of all pods of a run and of a serving pool, by the names of their workloads."""
    return {name: template["spec"] for name, template in pod_templates(settings, model, **run).items()}


def containers(template: Obj) -> list[Obj]:
    """Return the containers of a pod without its log hold."""
    return [c for c in all_containers(template) if c["name"] != LOG_HOLD_CONTAINER]


def all_containers(template: Obj) -> list[Obj]:
    return [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]


def container_of(template: Obj, name: str) -> Obj:
    (found,) = [c for c in all_containers(template) if c["name"] == name]
    return found


def variables(container: Obj) -> dict[str, Any]:
    """Value of each variable, or where it comes from."""
    return {entry["name"]: entry.get("value", entry.get("valueFrom")) for entry in container["env"]}


def told(template: Obj) -> Obj:
    """Return the configuration that an environment's pod gets."""
    (environment,) = containers(template)
    return dict(json.loads(variables(environment)["RLRUN_ENVIRONMENT"]))
