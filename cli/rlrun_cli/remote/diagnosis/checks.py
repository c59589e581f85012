"""Checks by `rlrun doctor` for what a user needs in the cluster. Each failed check has a hint."""

from collections.abc import Callable, Mapping
from functools import partial

from rlrun.constants import GROUP, VERSION
from rlrun.installation.checks import CheckFailed, Finding, run_checks
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CONFIG_MAP, DEPLOYMENT, NAMESPACE, RESOURCE_QUOTA, RLADAPTER, RLCHECKPOINT, RLMODEL, RLRUN
from rlrun.kube.objects import Obj
from rlrun.protocol.user_storage import LOCATION_PATH

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.run_data.run_summary import summarize
from rlrun_cli.remote.server import DISCOVERY_NAME, DISCOVERY_NAMESPACE, find_server
from rlrun_cli.terminal.errors import CliError, to_cli_error

ClusterCheck = Callable[[RemoteCluster], str]
"""Check that returns the observed state. Raises CheckFailed, ApiError, CliError or StoreError."""

CHECK_SECONDS = 5.0
"""Deadline for each check in seconds. Checks run concurrently."""
OPERATOR = {"app.kubernetes.io/name": "rlrun", "app.kubernetes.io/component": "operator"}
RIGHTS = (
    ("list", GROUP, "rlruns", ""),
    ("create", GROUP, "rlruns", ""),
    ("patch", GROUP, "rlruns", ""),
    ("get", GROUP, "rlruns", "metrics"),
    ("get", "", "pods", "log"),
    ("create", "", "secrets", ""),
)
"""Verb, group, resource and subresource of the actions that users of runs perform."""
NEEDED = ("pods", "count/pods", "cpu", "memory")
"""Quota resources, in addition to GPUs, that every run needs."""


def check_api(api: RemoteCluster) -> str:
    """Check that the API server responds and serves all of rlrun's kinds. Raises CheckFailed, ApiError."""
    try:
        served = {str(item.get("name")) for item in api.served_kinds().get("resources") or []}
    except ApiError as error:
        if error.status != 404:
            raise
        served = set()
    missing = sorted(kind.plural for kind in (RLRUN, RLMODEL, RLCHECKPOINT, RLADAPTER) if kind.plural not in served)
    if missing:
        raise CheckFailed(
            f"the cluster does not serve {', '.join(missing)} in {GROUP}/{VERSION}",
            "ask the platform team to install or upgrade the rlrun chart, or select another --context",
        )
    return f"all kinds of {GROUP}/{VERSION} are served"


def check_rights(api: RemoteCluster) -> str:
    """Check that the user has the permissions in RIGHTS in the namespace."""
    missing = [
        f"{verb} {resource}{'/' if subresource else ''}{subresource}"
        for verb, group, resource, subresource in RIGHTS
        if not api.may(verb, group, resource, subresource)
    ]
    if missing:
        raise CheckFailed(
            f"you may not {', '.join(missing)} in namespace {api.namespace}",
            "ask for the `edit` role (or `view` for read-only access) in this namespace, or select another with -n",
        )
    return f"you may start, change and read runs in namespace {api.namespace}"


def check_tenant(api: RemoteCluster) -> str:
    """Check that the operator serves the namespace, according to the ConfigMap that the chart publishes."""
    published = (api.read(CONFIG_MAP, DISCOVERY_NAME, DISCOVERY_NAMESPACE) or {}).get("data") or {}
    names = [name for name in str(published.get("namespaces") or "").split(",") if name]
    key, _, value = str(published.get("namespaceLabel") or "").partition("=")
    if names:
        if api.namespace in names:
            return f"the operator serves namespace {api.namespace}"
        raise CheckFailed(
            f"the operator does not serve namespace {api.namespace}, only {', '.join(names)}",
            f"select one of these with -n, or ask the platform team to add {api.namespace} to operator.watchNamespaces",
        )
    if not key:
        return "the chart does not publish which namespaces are served; not checked"
    try:
        namespace = api.read(NAMESPACE, api.namespace) or {"metadata": {}}
    except ApiError as error:
        if error.status == 403:
            return f"you lack the right to get namespace {api.namespace}; not checked"
        raise
    labels = namespace["metadata"].get("labels") or {}
    if labels.get(key) == value:
        return f"namespace {api.namespace} has the tenant label {key}={value}"
    raise CheckFailed(
        f"namespace {api.namespace} lacks the tenant label {key}={value}, so the operator starts no runs in it",
        f"ask a cluster administrator to run: kubectl label namespace {api.namespace} {key}={value}",
    )


def check_operator(api: RemoteCluster) -> str:
    """Check that the operator's Deployment has a ready pod, if the user may read it."""
    try:
        found, _ = api.snapshot(
            DEPLOYMENT, all_namespaces=True, selector=",".join(f"{k}={v}" for k, v in OPERATOR.items())
        )
    except ApiError as error:
        if error.status == 403:
            return "not visible with your rights; not checked"
        raise
    if not found:
        raise CheckFailed("no operator is installed", "ask the platform team to install the rlrun chart")
    ready = sum(int((item.get("status") or {}).get("readyReplicas") or 0) for item in found)
    place = "/".join((str(found[0]["metadata"].get("namespace")), found[0]["metadata"]["name"]))
    if not ready:
        raise CheckFailed(
            f"Deployment {place} has no ready pod",
            f"see the cause: kubectl describe deployment -n {place.replace('/', ' ')}",
        )
    return f"ready pods of Deployment {place}: {ready}"


def check_server(server: str | None, api: RemoteCluster) -> str:
    """Check that rlrun-server accepts this user's credential and can use S3."""
    location = find_server(api, server)("GET", LOCATION_PATH, None)
    if problem := location.get("problem"):
        raise CheckFailed(
            f"cannot use S3 correctly: {problem}",
            "ask the platform team to read `S3 servers` in docs/security.md, and the log of rlrun-server",
        )
    return "responds, and accepts your credential"


def check_models(api: RemoteCluster) -> str:
    """Check that there is an RLModel, and that the operator has checked at least one."""
    models, _ = api.snapshot(RLMODEL)
    seen = [m for m in models if (m.get("status") or {}).get("observedGeneration") is not None]
    if not models:
        raise CheckFailed("there is no model to train", "ask the platform team to add one: rlrun models add")
    if not seen:
        raise CheckFailed(
            f"RLModels that the operator has checked: 0 of {len(models)}",
            "ask the platform team to check that the operator is running",
        )
    return f"the operator has checked {len(seen)} of {len(models)}, for example {seen[0]['spec']['id']}"


def check_capacity(api: RemoteCluster) -> str:
    """Check that no quota of the namespace is exhausted, and count unfinished and queued runs."""
    runs = [summarize(run) for run in api.list(RLRUN)]
    waiting = [run for run in runs if run.phase == "Queued"]
    used_up = [text for quota in api.list(RESOURCE_QUOTA) for text in exhausted_resources(quota)]
    if used_up:
        raise CheckFailed(
            f"quotas of namespace {api.namespace} are exhausted: {', '.join(used_up)}",
            "wait for runs to end, stop some (rlrun list), or ask for a larger quota",
        )
    active = sum(not run.finished for run in runs)
    return f"unfinished runs: {active}, of which queued: {len(waiting)}; no quota is exhausted"


def exhausted_resources(quota: Obj) -> list[str]:
    """Return the exhausted resources of a ResourceQuota, as `name used/hard`."""
    status = quota.get("status") or {}
    used = status.get("used") or {}
    return [
        f"{name} {used[name]}/{hard}"
        for name, hard in (status.get("hard") or {}).items()
        if name in used and _is_used_up(name, str(used[name]), str(hard))
    ]


def _is_used_up(name: str, used: str, hard: str) -> bool:
    if hard == "0" and not (name.endswith("gpu") or name.removeprefix("requests.").removeprefix("limits.") in NEEDED):
        # A quota of zero is normal for resources that runs do not use, such as Services with node ports.
        return False
    if used.isdecimal() and hard.isdecimal():
        return int(used) >= int(hard)
    return used == hard


def examine(api: RemoteCluster, server: str | None) -> list[Finding]:
    """Return all findings. If the API server does not serve rlrun's kinds, no other check runs."""
    first = run(api, {"kinds": check_api}, CHECK_SECONDS)
    others: dict[str, ClusterCheck] = {
        "rights": check_rights,
        "operator": check_operator,
        "tenant": check_tenant,
        "rlrun-server": partial(check_server, server),
        "models": check_models,
        "capacity": check_capacity,
    }
    return first if first[0].is_problem else first + run(api, others, CHECK_SECONDS)


def run(
    api: RemoteCluster, checks: Mapping[str, ClusterCheck], seconds: float, missing_right: str = ""
) -> list[Finding]:
    """Run the checks concurrently and return their findings. A check that takes longer than `seconds` has failed.

    `missing_right` is the hint if the user lacks a permission that a check needs. Empty means the error's usual hint.
    """
    return run_checks({name: partial(_run, check, api, missing_right) for name, check in checks.items()}, seconds)


def _run(check: ClusterCheck, api: RemoteCluster, missing_right: str) -> str:
    from rlrun.storage.errors import StoreError

    try:
        return check(api)
    except ApiError as error:
        if error.status == 403 and missing_right:
            raise CheckFailed(f"not checked; you lack the right to {error.action}", missing_right) from None
        problem = to_cli_error(error)
    except CliError as error:
        problem = error
    except StoreError as error:
        problem = CliError(str(error))
    raise CheckFailed(problem.message, problem.hint or "ask the platform team")
