"""Checks before an upgrade: objects in the cluster that this version of rlrun refuses."""

from typing import TYPE_CHECKING

from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import RLMODEL, RLRUN
from rlrun.kube.objects import Obj

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.diagnosis.checks import Check, Finding, run_checks
from rlrun_cli.remote.run_data.run_summary import summarize

if TYPE_CHECKING:
    from rlrun.api.base.kubernetes_types import KubernetesObject

SECONDS = 60.0
"""Deadline of each check: all objects of the cluster are read."""
SHOWN = 10
"""Maximum number of objects in a finding."""


def check_models(api: RemoteCluster, server: str | None) -> Finding:
    """Check each RLModel by the schema of this version. Raises ApiError."""
    from rlrun.api.model import RLModel

    models, _ = api.snapshot(RLMODEL)
    return _finding(
        "RLModels",
        {f"RLModel {model['metadata']['name']}": _problem(RLModel, model) for model in models},
        "correct them before the upgrade: afterwards their runs fail with ModelInvalid when a new attempt begins",
    )


def check_runs(api: RemoteCluster, server: str | None) -> Finding:
    """Check each unfinished RLRun, of all namespaces that the user may read, by the schema of this version."""
    from rlrun.api.run import RLRun

    try:
        runs, _ = api.snapshot(RLRUN, all_namespaces=True)
    except ApiError as error:
        if error.status != 403:
            raise
        runs, _ = api.snapshot(RLRUN)
    return _finding(
        "RLRuns",
        {
            f"RLRun {run['metadata']['namespace']}/{run['metadata']['name']}": _problem(RLRun, run)
            for run in runs
            if not summarize(run).finished
        },
        "let them finish before the upgrade, or start them again with a corrected file",
    )


def _problem(model: "type[KubernetesObject]", obj: Obj) -> str | None:
    from pydantic import ValidationError
    from rlrun.api.base.field_errors import problems
    from rlrun.api.base.rules import ADMITTED

    # Rules are not checked again for a run that had begun.
    context = ADMITTED if (obj.get("status") or {}).get("resolved") else None
    try:
        model.model_validate({**obj, "status": {}}, by_alias=True, by_name=False, context=context)
    except ValidationError as error:
        return str(problems(error, model)[0])
    return None


def _finding(name: str, checked: dict[str, str | None], hint: str) -> Finding:
    refused = [f"{obj}: {problem}" for obj, problem in checked.items() if problem is not None]
    if not refused:
        return Finding(name, f"this version accepts all {len(checked)}")
    more = f"; and {len(refused) - SHOWN} more" if len(refused) > SHOWN else ""
    return Finding(name, f"this version refuses {len(refused)}: {'; '.join(refused[:SHOWN])}{more}", hint)


CHECKS: tuple[tuple[str, Check], ...] = (("RLModels", check_models), ("RLRuns", check_runs))


def examine_upgrade(api: RemoteCluster, server: str | None) -> list[Finding]:
    """Return the findings about an upgrade of the platform to the version of this program."""
    return run_checks(api, server, CHECKS, SECONDS)
