"""Command `env push`: upload environment packages to S3, where runs find them by `owner/name`.

A version is immutable: pushing the same files again changes nothing, and other files under the same version are
rejected, because runs started before and after would train on different code under one name.
"""

import re
import zipfile
from pathlib import Path
from typing import Annotated

import typer
from rlrun.storage.layout import S3Uri, environment_package
from rlrun.storage.store import Store, StoreError

from rlrun_cli.inputs.wheel_builder import (
    Wheel,
    build_wheel,
    content_digest,
    package_owner,
    read_project,
    read_wheel,
)
from rlrun_cli.remote.run_storage import Bucket, Endpoint, Prefix, open_store
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

env = typer.Typer(no_args_is_help=True, help="Manage environment packages, the code that runs train on.")

EPILOG = """Examples:

  rlrun env push examples/environments/reverse_text --owner me

  RLRUN_S3_BUCKET=rlrun rlrun env push . --include vendored/helper-1.0-py3-none-any.whl

Prints the id for env.id of a run. A pushed version is immutable: raise the version for other files.

S3 credentials come from the AWS_* variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ...)."""


def same_content(store: Store, folder: S3Uri, wheels: list[Wheel]) -> bool | None:
    """Return True if `folder` has exactly these wheels, None if it has no wheel. Raises StoreError."""
    stored = [name for name, _ in store.list_files(folder) if name.endswith(".whl")]
    if not stored:
        return None
    if sorted(stored) != sorted(w.file for w in wheels):
        return False
    try:
        return all(content_digest(store.get_bytes(folder / w.file)) == w.digest for w in wheels)
    except zipfile.BadZipFile:
        return False


def upload(store: Store, folder: S3Uri, wheels: list[Wheel], *, force: bool) -> bool:
    """Upload the wheels to `folder`. Returns False if it has the same content already.

    Raises CliError if it has other content and `force` is not set, StoreError for errors of S3.
    """
    match same_content(store, folder, wheels):
        case True:
            return False
        case False if not force:
            raise CliError(
                f"{folder} already has other files under this version",
                "raise the version in pyproject.toml, or add --force if no run uses this version",
            )
        case False:
            store.delete_prefix(folder)
    for wheel in wheels:
        store.put_bytes(folder / wheel.file, wheel.data)
    return True


def _unpushed_requirements(wheels: list[Wheel]) -> list[str]:
    """Return the required projects (without extras) for which no wheel is pushed."""
    pushed = {w.name for w in wheels}
    names = (re.split(r"[\s<>=!~;\[(@]", r, maxsplit=1)[0] for w in wheels for r in w.requires if "extra ==" not in r)
    return sorted({re.sub(r"[-_.]+", "-", n).lower() for n in names} - pushed - {"verifiers", "datasets"})


@env.callback()
def main() -> None:
    """Manage environment packages, the code that runs train on."""


@env.command(epilog=EPILOG)
def push(
    ctx: typer.Context,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a Python project that defines load_environment().")
    ],
    owner: Annotated[
        str | None, typer.Option(help="Owner in owner/name. Default: tool.rlrun.owner in pyproject.toml.")
    ] = None,
    bucket: Bucket = "",
    prefix: Prefix = "",
    endpoint: Endpoint = None,
    include: Annotated[
        list[Path] | None, typer.Option(help="Wheel of a dependency to push with the package. Repeatable.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the files of this version.")] = False,
) -> None:
    """Build a wheel from DIR and upload it to S3, where runs find it. Prints the id for env.id of a run."""
    if not bucket:
        raise CliError("no bucket is selected", "add --bucket, or set RLRUN_S3_BUCKET", code=INVALID)
    project = read_project(folder)
    owner_name = package_owner(project, owner)
    extra = [read_wheel(path) for path in include or []]
    wheel = build_wheel(folder)
    # The package comes last, so that its dependencies exist once it is visible.
    wheels = [*extra, wheel]
    target = environment_package(bucket, prefix, owner_name, wheel.name) / wheel.version
    try:
        store = open_store(ctx, endpoint)
        written = upload(store, target, wheels, force=force)
    except StoreError as problem:
        raise CliError(f"cannot push to {target}: {problem}") from problem
    output.notice(f"{'Pushed' if written else 'Nothing changed; S3 already has'} version {wheel.version} at {target}")
    if missing := _unpushed_requirements(wheels):
        output.notice(f"The environment image must contain {', '.join(missing)}, or push their wheels with --include.")
    typer.echo(f"{owner_name}/{wheel.name}")
