"""Checks before an upgrade for objects in the cluster that this version of rlrun rejects or no longer serves."""

from typing import TYPE_CHECKING

from rlrun.installation.checks import CheckFailed, Finding
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import CONFIG_MAP, NAMESPACE, RLADAPTER, RLMODEL, RLRUN
from rlrun.kube.objects import Obj

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.diagnosis.checks import run
from rlrun_cli.remote.run_data.run_summary import summarize
from rlrun_cli.remote.server import DISCOVERY_NAME, DISCOVERY_NAMESPACE

if TYPE_CHECKING:
    from rlrun.api.base.kubernetes_types import KubernetesObject

SECONDS = 60.0
"""Deadline in seconds for each check, which reads all objects of its kinds in the cluster."""
SHOWN = 10
"""Maximum number of rejected objects that a finding lists."""
TENANT_LABEL = "rlrun.dev/tenant=true"
"""Default of `operator.namespaceLabel` in the chart, used if the installed chart publishes no label."""


def check_models(api: RemoteCluster) -> str:
    """Check that this version's schema accepts each RLModel."""
    from rlrun.api.model import RLModel

    models, _ = api.snapshot(RLMODEL)
    return _check_accepted(
        {f"RLModel {model['metadata']['name']}": _problem(RLModel, model) for model in models},
        "correct these RLModels before the upgrade; otherwise their runs fail with ModelInvalid at their next attempt",
    )


def check_runs(api: RemoteCluster) -> str:
    """Check that this version's schema accepts the unfinished RLRuns.

    Checks all namespaces, or only the selected one if the user may not list RLRuns in all namespaces.
    """
    from rlrun.api.run import RLRun

    try:
        runs, _ = api.snapshot(RLRUN, all_namespaces=True)
    except ApiError as error:
        if error.status != 403:
            raise
        runs, _ = api.snapshot(RLRUN)
    return _check_accepted(
        {
            f"RLRun {run['metadata']['namespace']}/{run['metadata']['name']}": _problem(RLRun, run)
            for run in runs
            if not summarize(run).finished
        },
        "let these runs finish before the upgrade, or replace each by a new run from a corrected file",
    )


def check_tenants(api: RemoteCluster) -> str:
    """Check that each namespace with unfinished runs or deployed adapters has the tenant label."""
    published = (api.read(CONFIG_MAP, DISCOVERY_NAME, DISCOVERY_NAMESPACE) or {}).get("data") or {}
    if published.get("namespaces"):
        return "operator.watchNamespaces lists them; not checked"
    label = str(published.get("namespaceLabel") or TENANT_LABEL)
    key, _, value = label.partition("=")
    try:
        namespaces, _ = api.snapshot(NAMESPACE)
        runs, _ = api.snapshot(RLRUN, all_namespaces=True)
        adapters, _ = api.snapshot(RLADAPTER, all_namespaces=True)
    except ApiError as error:
        if error.status != 403:
            raise
        return "not visible with your rights; not checked"
    labels = {item["metadata"]["name"]: item["metadata"].get("labels") or {} for item in namespaces}
    used = {run["metadata"]["namespace"] for run in runs if not summarize(run).finished}
    used |= {adapter["metadata"]["namespace"] for adapter in adapters if adapter["spec"].get("deployed")}
    lacking = sorted(name for name in used if labels.get(name, {}).get(key) != value)
    if not lacking:
        return f"every namespace with unfinished runs or deployed adapters ({len(used)}) has the label {label}"
    raise CheckFailed(
        f"the operator will not serve these namespaces with runs or deployed adapters: {', '.join(lacking)}",
        f"before the upgrade: kubectl label namespace {' '.join(lacking)} {label}, or set operator.watchNamespaces",
    )


def _problem(model: "type[KubernetesObject]", obj: Obj) -> str | None:
    from pydantic import ValidationError
    from rlrun.api.base.field_errors import problems
    from rlrun.api.base.rules import ADMITTED

    # Validation rules are not checked again for a run that has started.
    context = ADMITTED if (obj.get("status") or {}).get("resolved") else None
    try:
        model.model_validate({**obj, "status": {}}, by_alias=True, by_name=False, context=context)
    except ValidationError as error:
        return str(problems(error, model)[0])
    return None


def _check_accepted(checked: dict[str, str | None], hint: str) -> str:
    """Return a message if all objects are accepted. `checked` maps each object to its problem, or None.

    Raises CheckFailed if an object has a problem.
    """
    refused = [f"{obj}: {problem}" for obj, problem in checked.items() if problem is not None]
    if not refused:
        return f"this version accepts all {len(checked)}"
    more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
    raise CheckFailed(f"this version rejects {len(refused)}: {'; '.join(refused[:SHOWN])}{more}", hint)


def examine_upgrade(api: RemoteCluster) -> list[Finding]:
    """Return the findings about an upgrade of the platform to the version of this CLI."""
    return run(api, {"RLModels": check_models, "RLRuns": check_runs, "tenants": check_tenants}, SECONDS)
