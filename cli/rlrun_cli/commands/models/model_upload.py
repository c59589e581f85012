"""Command `models push` for the platform team: uploads the files of a model to the platform's bucket."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError
from rlrun.api.base.names import EnvironmentId
from rlrun.storage.layout import MODELS_FOLDER, S3Uri
from rlrun.storage.manifest import ArtifactKind

from rlrun_cli.inputs.model_files import has_chat_template, model_files
from rlrun_cli.remote.run_storage import Addressing, Bucket, Endpoint, Prefix, open_store, s3_operation
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

PUSH_MODEL_EPILOG = """Examples:

  rlrun models push ./Qwen3-8B qwen/qwen3-8b --bucket rlrun
  rlrun models add qwen/qwen3-8b --source $(rlrun models push ./Qwen3-8B qwen/qwen3-8b) | kubectl apply -f -

For the platform team: requires credentials for the bucket. Prints the source for the RLModel. Pods read only files in \
the manifest that this command writes last, and verify them against it, so files uploaded by other tools are not \
found. Pushing the same files again changes nothing. Pushing other files under the same id replaces them, even for \
pods that running attempts start later."""


def push_model(
    ctx: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder with config.json, safetensors weights and the tokenizer.")
    ],
    model_id: Annotated[str, typer.Argument(metavar="ID", help="Id that runs use: owner/name.")],
    bucket: Bucket = "",
    prefix: Prefix = "",
    endpoint: Endpoint = None,
    addressing_style: Addressing = None,
) -> None:
    """Upload the files of a model to the platform's bucket. Prints the source to set in the RLModel."""
    if not bucket:
        raise CliError("no bucket is selected", "add --bucket, or set RLRUN_S3_BUCKET", code=INVALID)
    try:
        # Ids of model folders have two parts, like those of environments.
        TypeAdapter(EnvironmentId).validate_python(model_id)
    except ValidationError:
        raise CliError(f"{model_id!r} is not a valid model id", "write owner/name", code=INVALID) from None
    files = model_files(folder)
    target = S3Uri(bucket, "/".join(part for part in (prefix.strip("/"), MODELS_FOLDER, model_id) if part))
    size = output.size(sum(path.stat().st_size for path in files.values()))
    output.notice(f"Uploading {len(files)} files, {size}, to {target}")
    if not has_chat_template(files):
        output.notice("The model has no chat template; specify one in inference.extraArgs (--chat-template).")
    with tempfile.TemporaryDirectory(prefix="rlrun-model-") as scratch, s3_operation(f"upload {model_id}"):
        # Link only the chosen files, so that hidden download folders are left out.
        for name, path in files.items():
            link = Path(scratch, name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(path.resolve())
        open_store(ctx, endpoint, addressing_style).upload_artifact(
            Path(scratch), target, ArtifactKind.model, model=model_id
        )
    typer.echo(str(target))
