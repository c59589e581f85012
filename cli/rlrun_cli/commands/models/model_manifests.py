"""Commands `models add` and `models check`: manifests of RLModels, for the platform team."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rlrun.api.base.field_errors import problems
from rlrun.api.model import RLModel
from rlrun.constants import API_VERSION
from rlrun.kube.kinds import RLMODEL

from rlrun_cli.inputs.model_sizing import MAX_GPUS, parameters_in, size
from rlrun_cli.inputs.run_files import load_object, read_text
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

ADD_EPILOG = """Examples:

  rlrun models add qwen/qwen3-8b --source hf://Qwen/Qwen3-8B@COMMIT | kubectl apply -f -
  rlrun models add lab/tiny --source s3://rlrun/models/lab/tiny --cpu > tiny.yaml
  rlrun models add org/large --source pvc://weights/large --parameters 70 --gpu-memory 141

The number of GPUs is an estimate for adapters, from 2 bytes per parameter: weights take at most half of the trainer's \
and 70 % of the engine's GPU memory. Long sequences and full fine-tuning need more: docs/reference/rlmodel.md."""
CHECK_EPILOG = """Examples:

  rlrun models check tiny.yaml
  kubectl get rlmodel tiny -o yaml | rlrun models check -

Lists all problems with their lines. Nothing is sent."""


def add_model(
    model_id: Annotated[str, typer.Argument(metavar="ID", help="Id that runs use: owner/name.")],
    source: Annotated[str, typer.Option(help="Weights: hf://owner/name@COMMIT, s3://bucket/path or pvc://claim/path.")],
    name: Annotated[str | None, typer.Option(help="Name of the RLModel. Default: from the id.")] = None,
    seq_len: Annotated[int, typer.Option(min=16, help="Maximum length of a sequence in tokens.")] = 4096,
    rank: Annotated[int, typer.Option(min=1, max=512, help="Rank of the adapters.")] = 16,
    parameters: Annotated[
        float | None, typer.Option(min=0.001, help="Billions of parameters. Default: from the id or the source.")
    ] = None,
    gpu_memory: Annotated[float, typer.Option(min=1, help="Memory of one GPU in GB.")] = 80,
    cpu: Annotated[bool, typer.Option("--cpu", help="Train and serve on CPUs, for small models.")] = False,
) -> None:
    """Print the manifest of a model, with an estimate of the GPUs that it needs."""
    billions = parameters or parameters_in(model_id) or parameters_in(source.partition("@")[0])
    trainer: dict[str, Any] = {"gpus": 0 if cpu else 1}
    inference: dict[str, Any] = {"gpus": 0 if cpu else 1, "replicas": 1}
    if not cpu and billions is None:
        output.notice("The number of parameters is not known: one GPU each is assumed. Give it with --parameters.")
    elif not cpu and billions is not None:
        sizing = size(billions, gpu_memory)
        if not sizing.fits:
            raise CliError(
                f"the weights of {billions:g} billion parameters do not fit {MAX_GPUS} GPUs of {gpu_memory:g} GB",
                "name GPUs with more memory with --gpu-memory",
                code=INVALID,
            )
        trainer["gpus"], inference["gpus"] = sizing.trainer_gpus, sizing.engine_gpus
        output.notice(
            f"{billions:g} billion parameters are about {sizing.weights_gb:g} GB of weights: {sizing.trainer_gpus} GPU "
            f"of {gpu_memory:g} GB for the trainer, {sizing.engine_gpus} for each engine. An estimate: try it."
        )
    body: dict[str, Any] = {
        "apiVersion": API_VERSION,
        "kind": RLMODEL.kind,
        "metadata": {"name": name or re.sub(r"[^a-z0-9.]+", "-", model_id.rpartition("/")[2].lower()).strip("-.")},
        "spec": {
            "id": model_id,
            "source": source,
            "seqLen": seq_len,
            "lora": {"rank": rank},
            "trainer": trainer,
            "inference": inference,
        },
    }
    try:
        RLModel.from_object(body)
    except ValidationError as error:
        raise CliError(
            "these options do not make a valid model",
            "correct them and try again",
            code=INVALID,
            details=[str(problem) for problem in problems(error, RLModel)],
        ) from error
    sys.stdout.write(output.to_yaml(body))


def check_model(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="An RLModel as .yaml or .json, or - for standard input.")
    ],
) -> None:
    """Check the manifest of a model."""
    document = load_object(file, read_text(file), RLModel)
    typer.echo(f"{document['metadata']['name']}: {document['spec']['id']} is valid")
