"""Commands `models add` and `models check` for the platform team: print and check manifests of RLModels."""

import re
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from rlrun.api.base.field_errors import problems
from rlrun.api.model import HUB_SOURCE, RLModel, Trainer
from rlrun.constants import API_VERSION
from rlrun.kube.kinds import RLMODEL

from rlrun_cli.inputs.model_config import Architecture, architecture, read_config, read_hub_config
from rlrun_cli.inputs.model_sizing import (
    MAX_GPUS,
    PART_READS,
    Job,
    Sizing,
    parameters_in,
    pod_resources,
    size,
    size_architecture,
)
from rlrun_cli.inputs.run_files import load_object, read_text
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

ADD_MODEL_EPILOG = """Examples:

  rlrun models add qwen/qwen3-8b --source hf://Qwen/Qwen3-8B@COMMIT | kubectl apply -f -
  rlrun models add lab/tiny --source s3://rlrun/models/lab/tiny --cpu > tiny.yaml
  rlrun models add org/large --source pvc://weights/large --config ./large/config.json --gpu-memory 141

Sizes are computed from the model's config.json, read from the hub for an hf:// source (HF_ENDPOINT, HF_TOKEN) or from \
--config. Without it, they are estimated from the number of parameters given by --parameters or the model's name. The \
calculation is printed to standard error; docs/guides/models.md explains it."""
CHECK_MODEL_EPILOG = """Examples:

  rlrun models check tiny.yaml
  kubectl get rlmodel tiny -o yaml | rlrun models check -

Lists all problems with line numbers. Nothing is sent to the cluster."""


def add_model(
    model_id: Annotated[str, typer.Argument(metavar="ID", help="Id that runs use: owner/name.")],
    source: Annotated[
        str,
        typer.Option(help="Weights: hf://owner/name@COMMIT, s3://bucket/path, pvc://claim/path or oci://image@DIGEST."),
    ],
    name: Annotated[str | None, typer.Option(help="Name of the RLModel. Default: derived from the id.")] = None,
    seq_len: Annotated[int, typer.Option(min=16, help="Maximum length of a sequence in tokens.")] = 4096,
    rank: Annotated[int, typer.Option(min=1, max=512, help="Rank of the adapters.")] = 16,
    parameters: Annotated[
        float | None, typer.Option(min=0.001, help="Number of parameters in billions, if config.json is not available.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="The model's config.json or its folder. Default: read from the hub.")
    ] = None,
    gpu_memory: Annotated[float, typer.Option(min=1, help="Memory of one GPU in GB.")] = 80,
    full_fine_tuning: Annotated[
        bool, typer.Option("--full-fine-tuning", help="Allow full fine-tuning, and size the GPUs for it.")
    ] = False,
    cpu: Annotated[bool, typer.Option("--cpu", help="Train and serve a small model on CPUs.")] = False,
) -> None:
    """Print a manifest for a model, with suitable GPUs, CPU, memory and disk."""
    pods: dict[str, Any] = {"gpus": 0 if cpu else 1}
    trainer = {**pods, "fullFineTuning": True} if full_fine_tuning else dict(pods)
    inference = {**pods, "replicas": 1}
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
    _check(body)
    job = Job(gpu_memory, seq_len, rank, Trainer().micro_batch_tokens, full_fine_tuning)
    sizing = None if cpu else _sizing(model_id, source, parameters, config, job)
    if sizing is not None:
        trainer["gpus"], inference["gpus"] = sizing.trainer_gpus, sizing.engine_gpus
        if sizing.engine_gpus > 1:
            tensor = sizing.tensor or sizing.engine_gpus
            pipeline = sizing.engine_gpus // tensor
            inference["parallelism"] = {"tensor": tensor, **({"pipeline": pipeline} if pipeline > 1 else {})}
    weights = sizing.weights_gb if sizing else 0
    reads = PART_READS if sizing and sizing.read_by_parts else max(1, trainer["gpus"])
    # Full fine-tuning stores weights in float32.
    width = 4 if full_fine_tuning else 2
    downloads = source.startswith(("hf://", "s3://"))
    of_trainer = pod_resources(weights, trainer["gpus"], reads=reads, bytes_per_parameter=width, downloads=downloads)
    trainer["resources"] = of_trainer.to_json_dict()
    inference["resources"] = pod_resources(weights, inference["gpus"], downloads=downloads).to_json_dict()
    _check(body)
    sys.stdout.write(output.to_yaml(body))


def _check(body: dict[str, Any]) -> None:
    try:
        RLModel.from_object(body)
    except ValidationError as error:
        raise CliError(
            "the options do not describe a valid model",
            "correct them and try again",
            code=INVALID,
            details=[str(problem) for problem in problems(error, RLModel)],
        ) from error


def _sizing(model_id: str, source: str, parameters: float | None, config: Path | None, job: Job) -> Sizing | None:
    """Return the model's sizes and print the calculation, or return None if the number of parameters is unknown.

    Raises CliError if --config cannot be read, or if the model does not fit on MAX_GPUS GPUs.
    """
    found = _architecture(source, config) if config is not None or parameters is None else None
    billions = parameters or parameters_in(model_id) or parameters_in(source.partition("@")[0])
    if found is not None:
        sizing = size_architecture(found, job)
    elif billions is not None:
        sizing = size(billions, job.gpu_memory_gb)
    else:
        output.notice("The number of parameters is unknown; assuming one GPU per pod. Set --config or --parameters.")
        return None
    for step in sizing.steps:
        output.notice(step)
    if not sizing.fits:
        raise CliError(
            f"the model does not fit on {MAX_GPUS} GPUs of {job.gpu_memory_gb:g} GB",
            "use GPUs with more memory (--gpu-memory), or lower --seq-len",
            code=INVALID,
        )
    output.notice("This is an estimate: test the model with a few steps before others use it.")
    return sizing


def _architecture(source: str, config: Path | None) -> Architecture | None:
    """Return the architecture from --config or, if it is not set, from the hub.

    Returns None if the architecture is not supported, or if --config is not set and `source` is not a readable model on
    the hub. Raises CliError if --config cannot be read.
    """
    if config is None and not re.fullmatch(HUB_SOURCE, source):
        return None
    try:
        found = read_config(config) if config is not None else read_hub_config(source)
    except CliError as error:
        if config is not None:
            raise
        output.notice(f"Estimating from the number of parameters, because config.json is unavailable: {error.message}.")
        return None
    known = architecture(found)
    if known is None:
        output.notice("The architecture in config.json is not supported; specify --parameters.")
    return known


def check_model(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="An RLModel as .yaml or .json, or - for standard input.")
    ],
) -> None:
    """Check the manifest of a model."""
    document = load_object(file, read_text(file), RLModel)
    typer.echo(f"{document['metadata']['name']}: {document['spec']['id']} is valid")
