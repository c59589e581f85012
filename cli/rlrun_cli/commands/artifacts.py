"""Commands `models`, `checkpoints` and `adapters`."""

from collections.abc import Callable
from typing import Annotated

import typer
from rlrun.kube.kinds import RLADAPTER, RLCHECKPOINT, RLMODEL, RLRUN, ResourceKind
from rlrun.kube.objects import Obj

from rlrun_cli.commands.runs import Output
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import Context, Kubeconfig, Namespace, cluster
from rlrun_cli.terminal import output

MODELS_EPILOG = """Examples:

  rlrun models
  rlrun models -o json"""
CHECKPOINTS_EPILOG = """Examples:

  rlrun checkpoints
  rlrun checkpoints reverse-text-x7k2p

To start a run from a checkpoint, set checkpoint_id in its file to the name of the checkpoint."""
ADAPTERS_EPILOG = """Examples:

  rlrun adapters reverse-text-x7k2p
  rlrun download reverse-text-x7k2p-step-000030-842409bd adapter/"""

RunName = Annotated[str | None, typer.Argument(metavar="[RUN]", help="List only those of this run.")]


def model_row(item: Obj) -> list[output.Cell]:
    """Return one row of `rlrun models`."""
    spec = item["spec"]
    trainer, inference = spec.get("trainer") or {}, spec.get("inference") or {}
    runs = (item.get("status") or {}).get("runs")
    return [
        spec["id"],
        str(spec.get("seqLen", "-")),
        str((spec.get("lora") or {}).get("rank", "-")),
        shape(trainer.get("nodes", 1), trainer.get("gpus", 1)),
        shape(inference.get("replicas", 1), inference.get("gpus", 1)),
        "-" if runs is None else str(runs),
        spec.get("source"),
        output.age(item),
    ]


def shape(pods: int, gpus: int) -> str:
    """Return text such as `2x8 GPU` or `1x CPU`."""
    return f"{pods}x{gpus} GPU" if gpus else f"{pods}x CPU"


def artifact_row(item: Obj) -> list[output.Cell]:
    """Return one row of `rlrun checkpoints`."""
    spec, status = item["spec"], item.get("status") or {}
    return [
        item["metadata"]["name"],
        spec.get("runName"),
        str(spec.get("step", "-")),
        output.phase(status.get("phase") or "Pending"),
        output.number(status.get("reward")),
        output.size(status.get("sizeBytes")),
        output.age(item),
        spec.get("uri"),
    ]


def adapter_row(item: Obj) -> list[output.Cell]:
    """Return one row of `rlrun adapters`."""
    row = artifact_row(item)
    deployment = (item.get("status") or {}).get("deploymentState") or "NotDeployed"
    return [*row[:6], deployment, *row[6:]]


def _artifacts_of(api: RemoteCluster, kind: ResourceKind, run: str | None) -> list[Obj]:
    items = api.list(kind)
    if run is not None:
        items = [i for i in items if i["spec"].get("runName") == run]
        if not items:
            api.get(RLRUN, run)  # raises if the run does not exist
    return sorted(items, key=lambda i: (str(i["spec"].get("runName")), int(i["spec"].get("step") or 0)))


def _show(
    items: list[Obj],
    kind: ResourceKind,
    fmt: output.Format | None,
    headers: list[str],
    row: Callable[[Obj], list[output.Cell]],
    empty: str,
) -> None:
    if fmt:
        output.emit(items, kind.plural, fmt, single=False)
    elif items:
        output.print_table(headers, [row(i) for i in items])
    else:
        output.notice(empty)


def models(
    ctx: typer.Context,
    fmt: Output = None,
    kubeconfig: Kubeconfig = None,
    context: Context = None,
) -> None:
    """List the models that runs can train."""
    items = sorted(cluster(ctx, kubeconfig, context, None).list(RLMODEL), key=lambda i: str(i["spec"]["id"]))
    headers = ["MODEL", "SEQ-LEN", "RANK", "TRAINER", "INFERENCE", "RUNS", "SOURCE", "AGE"]
    _show(items, RLMODEL, fmt, headers, model_row, "No models. An administrator adds them as RLModel objects.")


def _artifact_command(
    kind: ResourceKind, headers: list[str], row: Callable[[Obj], list[output.Cell]], *, empty: str, summary: str
) -> Callable[..., None]:
    """Return the command that lists the artifacts of one kind. `summary` is its help."""

    def command(
        ctx: typer.Context,
        run: RunName = None,
        fmt: Output = None,
        namespace: Namespace = None,
        kubeconfig: Kubeconfig = None,
        context: Context = None,
    ) -> None:
        items = _artifacts_of(cluster(ctx, kubeconfig, context, namespace), kind, run)
        _show(items, kind, fmt, headers, row, empty)

    command.__doc__ = summary
    return command


checkpoints = _artifact_command(
    RLCHECKPOINT,
    ["NAME", "RUN", "STEP", "PHASE", "REWARD", "SIZE", "AGE", "URI"],
    artifact_row,
    empty="No checkpoints yet.",
    summary="List the checkpoints of a run or namespace. A new run can start from one.",
)
adapters = _artifact_command(
    RLADAPTER,
    ["NAME", "RUN", "STEP", "PHASE", "REWARD", "SIZE", "DEPLOYMENT", "AGE", "URI"],
    adapter_row,
    empty="No adapters yet. By default a run saves one after its last step.",
    summary="List the adapters of a run or namespace.",
)
