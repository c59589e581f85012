"""Commands `models` and `models get`."""

from typing import Annotated

import typer
from rich.text import Text
from rlrun.kube.kinds import RLMODEL
from rlrun.kube.objects import Obj

from rlrun_cli.commands.listing import Choice, show_list, show_one, with_cluster_list_options, with_get_options
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import with_cluster_only
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import NotFoundError

LIST_MODELS_EPILOG = """Examples:

  rlrun models
  rlrun models -o wide --sort-by .spec.seqLen
  rlrun models -o json"""
GET_MODEL_EPILOG = """Examples:

  rlrun models get qwen/qwen3-0.6b
  rlrun models get qwen3-0.6b -o yaml"""

ModelName = Annotated[str, typer.Argument(metavar="MODEL", help="Id of the model, or name of its RLModel.")]


def shape(pods: int, gpus: int) -> str:
    """Describe pods and their GPUs: `2x8 GPU` for 2 pods with 8 GPUs each, `1x CPU` for 1 pod without GPUs."""
    return f"{pods}x{gpus} GPU" if gpus else f"{pods}x CPU"


def _trainer(item: Obj) -> str:
    trainer = item["spec"].get("trainer") or {}
    return shape(trainer.get("nodes", 1), trainer.get("gpus", 1))


def _inference(item: Obj) -> str:
    inference = item["spec"].get("inference") or {}
    return shape(inference.get("replicas", 1), inference.get("gpus", 1))


def problems_of(item: Obj) -> list[Obj]:
    """Return the model's conditions that have status False or are warnings."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return [c for c in conditions if c["status"] == ("True" if c["type"] == "Warnings" else "False")]


@with_cluster_only
@with_cluster_list_options
def list_models(ctx: typer.Context, api: RemoteCluster, choice: Choice) -> None:
    """List the models that runs can train."""
    empty = "No models. An administrator adds them as RLModel objects: rlrun models add --help"
    show_list(ctx, api, RLMODEL, choice, empty=empty)


def describe(item: Obj) -> list[Text]:
    """Return the lines that `get` prints for a model."""
    spec = item["spec"]
    facts = [
        ("Model", str(spec["id"])),
        ("Object", str(item["metadata"]["name"])),
        ("Source", str(spec.get("source"))),
        ("Length", f"{spec.get('seqLen', '-')} tokens"),
        ("LoRA", f"rank {(spec.get('lora') or {}).get('rank', '-')}"),
        ("Trainer", _trainer(item)),
        ("Inference", _inference(item)),
        ("Runs", str((item.get("status") or {}).get("runs", "-"))),
        ("Age", output.age(item)),
        *(("Warning", f"{c.get('reason')}: {c.get('message')}") for c in problems_of(item)),
    ]
    return [output.fact(label, value, 11) for label, value in facts]


@with_cluster_only
@with_get_options
def get_model(ctx: typer.Context, api: RemoteCluster, name: ModelName, choice: Choice) -> None:
    """Show one model, by its id or the name of its object."""
    if "/" in name:
        same = [item for item in api.list(RLMODEL) if item["spec"].get("id") == name]
        if not same:
            raise NotFoundError(f"no RLModel has the id {name}", "list the models: rlrun models")
        name = same[0]["metadata"]["name"]
    show_one(ctx, api, RLMODEL, name, choice, describe)
