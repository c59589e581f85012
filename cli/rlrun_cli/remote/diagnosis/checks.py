"""Checks of `rlrun doctor`: what a user needs of the cluster, each with what to do if it is missing."""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from rlrun.constants import GROUP, VERSION
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CONFIG_MAP, DEPLOYMENT, NAMESPACE, RESOURCE_QUOTA, RLADAPTER, RLCHECKPOINT, RLMODEL, RLRUN
from rlrun.kube.objects import Obj
from rlrun.protocol.user_storage import LOCATION_PATH

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.run_data.run_summary import summarize
from rlrun_cli.remote.server import DISCOVERY_NAME, DISCOVERY_NAMESPACE, find_server
from rlrun_cli.terminal.errors import CliError, to_cli_error

CHECK_SECONDS = 5.0
"""Deadline of each check. They run at the same time."""
OPERATOR = {"app.kubernetes.io/name": "rlrun", "app.kubernetes.io/component": "operator"}
RIGHTS = (
    ("list", GROUP, "rlruns", ""),
    ("create", GROUP, "rlruns", ""),
    ("patch", GROUP, "rlruns", ""),
    ("get", GROUP, "rlruns", "metrics"),
    ("get", "", "pods", "log"),
    ("create", "", "secrets", ""),
)
"""Verb, group, resource and subresource of what users of runs do."""
NEEDED = ("pods", "count/pods", "cpu", "memory")
"""Resources of a quota, besides GPUs, without which no run starts."""


@dataclass(frozen=True)
class Finding:
    """Result of one check."""

    name: str
    text: str
    """Observed state, or problem."""
    hint: str = ""
    """Next step. Empty if nothing is wrong."""

    @property
    def is_problem(self) -> bool:
        """True if something is wrong."""
        return bool(self.hint)


Check = Callable[[RemoteCluster, str | None], Finding]


def check_api(api: RemoteCluster, server: str | None) -> Finding:
    """Check that the API server answers and has all kinds of rlrun. Raises CliError."""
    try:
        served = {str(item.get("name")) for item in api.served_kinds().get("resources") or []}
    except ApiError as error:
        if error.status != 404:
            raise
        served = set()
    missing = sorted(kind.plural for kind in (RLRUN, RLMODEL, RLCHECKPOINT, RLADAPTER) if kind.plural not in served)
    if missing:
        return Finding(
            "kinds",
            f"the cluster does not serve {', '.join(missing)} in {GROUP}/{VERSION}",
            "ask the platform team to install or upgrade the chart of rlrun, or select another --context",
        )
    return Finding("kinds", f"all kinds of {GROUP}/{VERSION} are served")


def check_rights(api: RemoteCluster, server: str | None) -> Finding:
    """Check what the user may do in the namespace."""
    missing = [
        f"{verb} {resource}{'/' if subresource else ''}{subresource}"
        for verb, group, resource, subresource in RIGHTS
        if not api.may(verb, group, resource, subresource)
    ]
    if missing:
        return Finding(
            "rights",
            f"you may not {', '.join(missing)} in namespace {api.namespace}",
            "ask for the role edit (to look only: view) in this namespace, or select another with -n",
        )
    return Finding("rights", f"you may start, change and read runs in namespace {api.namespace}")


def check_tenant(api: RemoteCluster, server: str | None) -> Finding:
    """Check that the operator serves the namespace, by what the chart publishes about it. Raises ApiError."""
    published = (api.read(CONFIG_MAP, DISCOVERY_NAME, DISCOVERY_NAMESPACE) or {}).get("data") or {}
    names = [name for name in str(published.get("namespaces") or "").split(",") if name]
    key, _, value = str(published.get("namespaceLabel") or "").partition("=")
    if names:
        if api.namespace in names:
            return Finding("tenant", f"the operator serves namespace {api.namespace}")
        return Finding(
            "tenant",
            f"the operator does not serve namespace {api.namespace}: only {', '.join(names)}",
            "select one of them with -n, or ask the platform team to add it to operator.watchNamespaces",
        )
    if not key:
        return Finding("tenant", "the chart does not say which namespaces are served; not checked")
    try:
        namespace = api.read(NAMESPACE, api.namespace) or {"metadata": {}}
    except ApiError as error:
        if error.status == 403:
            return Finding("tenant", f"you may not get namespace {api.namespace}; not checked")
        raise
    labels = namespace["metadata"].get("labels") or {}
    if labels.get(key) == value:
        return Finding("tenant", f"namespace {api.namespace} has the label {key}={value} of tenants")
    return Finding(
        "tenant",
        f"namespace {api.namespace} lacks the label {key}={value}: the operator has no rights in it, and starts no run",
        f"ask an administrator of the cluster: kubectl label namespace {api.namespace} {key}={value}",
    )


def check_operator(api: RemoteCluster, server: str | None) -> Finding:
    """Check that the operator's Deployment has a ready pod, if the user may see it."""
    try:
        found, _ = api.snapshot(
            DEPLOYMENT, all_namespaces=True, selector=",".join(f"{k}={v}" for k, v in OPERATOR.items())
        )
    except ApiError as error:
        if error.status == 403:
            return Finding("operator", "not visible with your rights; not checked")
        raise
    if not found:
        return Finding("operator", "no operator is installed", "ask the platform team to install the chart of rlrun")
    ready = sum(int((item.get("status") or {}).get("readyReplicas") or 0) for item in found)
    place = "/".join((str(found[0]["metadata"].get("namespace")), found[0]["metadata"]["name"]))
    if not ready:
        return Finding(
            "operator",
            f"Deployment {place} has no ready pod",
            f"see why: kubectl describe deployment -n {place.replace('/', ' ')}",
        )
    return Finding("operator", f"{ready} ready pods of Deployment {place}")


def check_server(api: RemoteCluster, server: str | None) -> Finding:
    """Check that rlrun-server answers this user. Raises CliError, StoreError."""
    location = find_server(api, server)("GET", LOCATION_PATH, None)
    if problem := location.get("problem"):
        return Finding(
            "rlrun-server",
            f"cannot use S3 as it has to: {problem}",
            "ask the platform team to see docs/security.md, S3 servers, and the log of rlrun-server",
        )
    return Finding("rlrun-server", "answers, and knows you")


def check_models(api: RemoteCluster, server: str | None) -> Finding:
    """Check that there is a model to train."""
    models, _ = api.snapshot(RLMODEL)
    seen = [m for m in models if (m.get("status") or {}).get("observedGeneration") is not None]
    if not models:
        return Finding("models", "there is no model to train", "ask the platform team to add one: rlrun models add")
    if not seen:
        return Finding(
            "models",
            f"the operator has not checked any of the {len(models)} models yet",
            "ask the platform team whether the operator runs",
        )
    return Finding("models", f"{len(seen)} of {len(models)} can be trained, for example {seen[0]['spec']['id']}")


def check_capacity(api: RemoteCluster, server: str | None) -> Finding:
    """Check the quotas of the namespace and the runs that wait. Raises CliError."""
    runs = [summarize(run) for run in api.list(RLRUN)]
    waiting = [run for run in runs if run.phase == "Queued"]
    used_up = [text for quota in api.list(RESOURCE_QUOTA) for text in exhausted_resources(quota)]
    if used_up:
        return Finding(
            "capacity",
            f"quotas of namespace {api.namespace} are used up: {', '.join(used_up)}",
            "wait for runs to end, stop some (rlrun list), or ask for a larger quota",
        )
    active = sum(not run.finished for run in runs)
    return Finding("capacity", f"{active} unfinished runs, {len(waiting)} of them queued; no quota is used up")


def exhausted_resources(quota: Obj) -> list[str]:
    """Return the resources of a ResourceQuota that are used up, as `name used/hard`."""
    status = quota.get("status") or {}
    used = status.get("used") or {}
    return [
        f"{name} {used[name]}/{hard}"
        for name, hard in (status.get("hard") or {}).items()
        if name in used and _is_used_up(name, str(used[name]), str(hard))
    ]


def _is_used_up(name: str, used: str, hard: str) -> bool:
    if hard == "0" and not (name.endswith("gpu") or name.removeprefix("requests.").removeprefix("limits.") in NEEDED):
        # A platform forbids kinds that runs do not use, for example Services with node ports.
        return False
    if used.isdecimal() and hard.isdecimal():
        return int(used) >= int(hard)
    return used == hard


CHECKS: Sequence[tuple[str, Check]] = (
    ("rights", check_rights),
    ("operator", check_operator),
    ("tenant", check_tenant),
    ("rlrun-server", check_server),
    ("models", check_models),
    ("capacity", check_capacity),
)


def examine(api: RemoteCluster, server: str | None, seconds: float = CHECK_SECONDS) -> list[Finding]:
    """Return the findings, first of the API server. Without it nothing else is checked."""
    first = run_checks(api, server, (("kinds", check_api),), seconds)
    return first if first[0].is_problem else first + run_checks(api, server, CHECKS, seconds)


def run_checks(
    api: RemoteCluster, server: str | None, checks: Sequence[tuple[str, Check]], seconds: float
) -> list[Finding]:
    """Run the checks concurrently and return their findings. A check that exceeds `seconds` is a problem."""
    answers: dict[str, queue.SimpleQueue[Finding]] = {name: queue.SimpleQueue() for name, _ in checks}
    for name, check in checks:
        arguments = (name, check, api, server, answers[name])
        # Daemons: a check that hangs must not keep the command from ending.
        threading.Thread(target=_run_check, args=arguments, daemon=True).start()
    findings = []
    for name, answer in answers.items():
        try:
            findings.append(answer.get(timeout=seconds))
        except queue.Empty:
            findings.append(
                Finding(name, f"no answer within {seconds:g} s", "try again; ask the platform team if it stays")
            )
    return findings


def _run_check(
    name: str, check: Check, api: RemoteCluster, server: str | None, answer: "queue.SimpleQueue[Finding]"
) -> None:
    from rlrun.storage.errors import StoreError

    try:
        finding = check(api, server)
    except ApiError as error:
        problem = to_cli_error(error)
        finding = Finding(name, problem.message, problem.hint or "ask the platform team")
    except CliError as problem:
        finding = Finding(name, problem.message, problem.hint or "ask the platform team")
    except StoreError as problem:
        finding = Finding(name, str(problem), "ask the platform team")
    except Exception as problem:
        finding = Finding(name, f"the check failed: {type(problem).__name__}: {problem}", "report this error")
    answer.put(finding)
