"""Checks by `rlrun doctor --gpu` for what the platform team must provide for GPU runs.

The checks need rights that users lack. A missing right is reported as a finding, and the other checks still run.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from rlrun.api.model import is_gpu
from rlrun.constants import MINIMUM_DRIVER
from rlrun.installation.checks import CheckFailed, Finding
from rlrun.kube.kinds import CLAIM, CONFIG_MAP, DEPLOYMENT, NODE, RLMODEL, RUNTIME_CLASS, SECRET, STORAGE_CLASS
from rlrun.kube.objects import Obj, annotation

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.diagnosis.checks import CHECK_SECONDS, OPERATOR, ClusterCheck, run

GPU = "nvidia.com/gpu"
DRIVER_LABELS = ("nvidia.com/cuda.driver-version.major", "nvidia.com/cuda.driver.major")
"""Labels that GPU feature discovery sets. The first is that of newer versions."""
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
ROLES = ("trainer", "inference")
MISSING_RIGHT = "ask for this right, or use a platform team account"


def gpus_of(node: Obj) -> dict[str, int]:
    """Return the allocatable GPUs of a node by resource."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {name: int(count) for name, count in allocatable.items() if is_gpu(name) and str(count).isdecimal()}


def needed_gpus(shape: Obj) -> dict[str, int]:
    """Return the GPUs that a pod with this `shape` (a role of an RLModel) requests, by resource. Default: one GPU."""
    resources = shape.get("resources") or {}
    named = {**(resources.get("requests") or {}), **(resources.get("limits") or {})}
    needed = {name: int(str(count)) for name, count in named.items() if is_gpu(name) and str(count).isdecimal()}
    gpus = int(shape.get("gpus", 1))
    return needed | ({GPU: gpus} if gpus else {})


def check_gpus(api: RemoteCluster) -> str:
    """Check that nodes have GPUs, and that for each role of each RLModel, some node can run the role's pods."""
    nodes, _ = api.snapshot(NODE)
    offers = [f"{count} {name} on {_name(node)}" for node in nodes for name, count in sorted(gpus_of(node).items())]
    if not offers:
        raise CheckFailed(
            f"none of the {len(nodes)} nodes has GPUs",
            "install the vendor's device plugin (for NVIDIA, the GPU operator), and label the nodes",
        )
    models, _ = api.snapshot(RLMODEL)
    problems = [problem for model in models if (problem := unfit(model, nodes))]
    if problems:
        raise CheckFailed(
            f"{'; '.join(problems)}. Available: {', '.join(offers)}", "correct the RLModels, or add matching nodes"
        )
    return f"{', '.join(offers)}; RLModels that fit: all {len(models)}"


def unfit(model: Obj, nodes: Sequence[Obj]) -> str | None:
    """Return the reason why no node can run a pod of one of the RLModel's roles, or None."""
    for role in ROLES:
        shape = model["spec"].get(role) or {}
        reasons = [_misfit(shape, node) for node in nodes]
        if reasons and all(reasons):
            counted = Counter(reason for reason in reasons if reason)
            why = ", ".join(f"{reason} ({count})" for reason, count in counted.most_common(3))
            return f"no node can run the {role} of {model['spec'].get('id')}: {why}"
    return None


def _misfit(shape: Obj, node: Obj) -> str | None:
    labels = node["metadata"].get("labels") or {}
    missing = [f"{k}={v}" for k, v in (shape.get("nodeSelector") or {}).items() if labels.get(k) != v]
    if missing:
        return f"no label {missing[0]}"
    taints = [t for t in (node.get("spec") or {}).get("taints") or [] if t.get("effect") != "PreferNoSchedule"]
    for taint in taints:
        if not any(_tolerates(toleration, taint) for toleration in shape.get("tolerations") or []):
            return f"taint {taint.get('key')} not tolerated"
    offered = gpus_of(node)
    for name, count in needed_gpus(shape).items():
        if offered.get(name, 0) < count:
            return f"{offered.get(name, 0)} of {count} {name}"
    return None


def _tolerates(toleration: Obj, taint: Obj) -> bool:
    if toleration.get("effect") not in (None, "", taint.get("effect")):
        return False
    if not toleration.get("key"):
        return toleration.get("operator") == "Exists"
    is_same = toleration["key"] == taint.get("key")
    return is_same and (toleration.get("operator") == "Exists" or toleration.get("value") == taint.get("value"))


def check_driver(api: RemoteCluster) -> str:
    """Check the version of the NVIDIA driver on nodes with NVIDIA GPUs."""
    nodes = [node for node in api.snapshot(NODE)[0] if any(n.startswith("nvidia.com/") for n in gpus_of(node))]
    if not nodes:
        return "no node has NVIDIA GPUs; not checked"
    versions = {_name(node): driver_of(node) for node in nodes}
    old = [f"{name} has {version}" for name, version in versions.items() if version and version < MINIMUM_DRIVER]
    if old:
        raise CheckFailed(
            f"{', '.join(old)}: the images use CUDA 13, which needs driver {MINIMUM_DRIVER} or later",
            f"install NVIDIA's driver {MINIMUM_DRIVER} or later, or specify images with an older CUDA in the RLModels",
        )
    unknown = [name for name, version in versions.items() if version is None]
    if unknown:
        raise CheckFailed(
            f"the driver version is unknown on {', '.join(unknown)}",
            f"install GPU feature discovery, or check that `nvidia-smi` shows {MINIMUM_DRIVER} or later on these nodes",
        )
    return f"{min(v for v in versions.values() if v)} or later on {len(nodes)} nodes"


def driver_of(node: Obj) -> int | None:
    """Return the major version of the node's driver, or None if the node's labels do not contain it."""
    labels = node["metadata"].get("labels") or {}
    found = [str(labels[name]) for name in DRIVER_LABELS if name in labels]
    return int(found[0]) if found and found[0].isdecimal() else None


def check_runtime_classes(api: RemoteCluster) -> str:
    """Check that the RuntimeClasses named by RLModels and the operator's settings exist."""
    there = {_name(item) for item in api.snapshot(RUNTIME_CLASS)[0]}
    named: dict[str, str] = {}
    for model in api.snapshot(RLMODEL)[0]:
        for role in ROLES:
            name = (model["spec"].get(role) or {}).get("runtimeClassName")
            if name:
                named[str(name)] = f"{role} of {model['spec'].get('id')}"
    name = (operator_settings(api).get("environments") or {}).get("runtimeClassName")
    if name:
        named[str(name)] = "the environments"
    missing = [f"{name} (for {what})" for name, what in named.items() if name not in there]
    if missing:
        raise CheckFailed(
            f"missing: {', '.join(missing)}; existing: {', '.join(sorted(there)) or 'none'}",
            "create each missing RuntimeClass, or correct its name in the RLModel or the chart",
        )
    hint = "; pods need NVIDIA's RuntimeClass unless its runtime is the nodes' default" if not named and there else ""
    return f"existing: {', '.join(sorted(there)) or 'none'}; {len(named)} used by RLModels or environments{hint}"


def check_pull_secrets(api: RemoteCluster) -> str:
    """Check that the Secrets with which pods of runs pull images exist in the namespace and have the right type."""
    names = [str(name) for name in operator_settings(api).get("imagePullSecrets") or []]
    if not names:
        return "the chart specifies no pull secrets (runs.imagePullSecrets)"
    wrong = []
    for name in names:
        found, _ = api.snapshot(SECRET, fields=f"metadata.name={name}")
        if not found:
            wrong.append(f"Secret {name} does not exist in namespace {api.namespace}")
        elif not str(found[0].get("type")).startswith("kubernetes.io/dockerc"):
            wrong.append(f"Secret {name} in namespace {api.namespace} has type {found[0].get('type')}")
    if wrong:
        raise CheckFailed(
            "; ".join(wrong),
            f"create it: kubectl create secret docker-registry {names[0]} -n {api.namespace} --docker-server=... "
            "--docker-username=... --docker-password=...",
        )
    return f"{', '.join(names)} in namespace {api.namespace}"


def check_volumes(api: RemoteCluster) -> str:
    """Check the PersistentVolumeClaims and StorageClasses that RLModels use for their weights."""
    models, _ = api.snapshot(RLMODEL)
    claims = {_name(item): str((item.get("status") or {}).get("phase")) for item in api.snapshot(CLAIM)[0]}
    wrong = []
    for model in models:
        source = str(model["spec"].get("source") or "")
        claim = source.removeprefix("pvc://").partition("/")[0]
        if source.startswith("pvc://") and claims.get(claim) != "Bound":
            state = claims.get(claim, "missing")
            wrong.append(f"claim {claim} of {model['spec'].get('id')} is {state} in namespace {api.namespace}")
    caches = [model for model in models if model["spec"].get("cache")]
    if caches:
        classes = api.snapshot(STORAGE_CLASS)[0]
        wrong += [problem for model in caches if (problem := _class_problem(model, classes))]
    if wrong:
        raise CheckFailed("; ".join(wrong), "create the claim or the StorageClass, or correct the RLModel")
    return f"{len(claims)} claims in namespace {api.namespace}; {len(caches)} models with a cache"


def _class_problem(model: Obj, classes: Iterable[Obj]) -> str | None:
    named, model_id = model["spec"]["cache"].get("storageClass"), model["spec"].get("id")
    if named is None:
        has_default = any(annotation(item, DEFAULT_CLASS) == "true" for item in classes)
        return None if has_default else f"the cache of {model_id} names no StorageClass, and the cluster has no default"
    return None if named in map(_name, classes) else f"StorageClass {named} of the cache of {model_id} does not exist"


def operator_settings(api: RemoteCluster) -> Mapping[str, Obj]:
    """Return the operator's settings from its ConfigMap, or an empty mapping if there is none. Raises ApiError."""
    import yaml

    selector = ",".join(f"{key}={value}" for key, value in OPERATOR.items())
    for deployment in api.snapshot(DEPLOYMENT, all_namespaces=True, selector=selector)[0]:
        for volume in deployment["spec"]["template"]["spec"].get("volumes") or []:
            name = (volume.get("configMap") or {}).get("name")
            if name is None:
                continue
            namespace = deployment["metadata"]["namespace"]
            found = api.read(CONFIG_MAP, name, namespace)
            settings = yaml.safe_load(((found or {}).get("data") or {}).get("settings.yaml") or "{}")
            if isinstance(settings, dict) and settings:
                return settings
    return {}


def _name(obj: Obj) -> str:
    return str(obj["metadata"]["name"])


def examine_gpus(api: RemoteCluster) -> list[Finding]:
    """Return findings about the cluster's support for runs on GPUs."""
    checks: dict[str, ClusterCheck] = {
        "gpus": check_gpus,
        "driver": check_driver,
        "runtime classes": check_runtime_classes,
        "pull secrets": check_pull_secrets,
        "volumes": check_volumes,
    }
    return run(api, checks, CHECK_SECONDS, MISSING_RIGHT)
