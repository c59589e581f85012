"""`rlrun env`: environment packages in S3, where runs find them by `owner/name`.

A version is written once. Pushing the same files again changes nothing; other files under the same version are refused,
because runs that started before and after would train on different code under one name.
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
    owner_of,
    read_project,
    read_wheel,
)
from rlrun_cli.remote.run_storage import Bucket, Endpoint, Prefix, open_store
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

env = typer.Typer(no_args_is_help=True, help="Environment packages: the code that runs train on.")

EPILOG = """Examples:

  rlrun env push examples/environments/reverse_text --owner me

  RLRUN_S3_BUCKET=rlrun rlrun env push . --include vendored/helper-1.0-py3-none-any.whl

S3 credentials come from the usual AWS_* variables (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, ...)."""


def same_content(store: Store, folder: S3Uri, wheels: list[Wheel]) -> bool | None:
    """Whether exactly these wheels are at `folder` already; None where there is nothing. Raises StoreError."""
    there = [name for name, _ in store.list_files(folder) if name.endswith(".whl")]
    if not there:
        return None
    if sorted(there) != sorted(w.file for w in wheels):
        return False
    try:
        return all(content_digest(store.get_bytes(folder / w.file)) == w.digest for w in wheels)
    except zipfile.BadZipFile:
        return False


def upload(store: Store, folder: S3Uri, wheels: list[Wheel], *, force: bool) -> bool:
    """Put the wheels at `folder`; False when they are there already.

    Raises CliError when something else is there and `force` is not given, StoreError when S3 says no.
    """
    match same_content(store, folder, wheels):
        case True:
            return False
        case False if not force:
            raise CliError(
                f"{folder} holds other files under this version",
                "raise the version in pyproject.toml; or --force, if no run uses that version",
            )
        case False:
            store.delete_prefix(folder)
    for wheel in wheels:
        store.put_bytes(folder / wheel.file, wheel.data)
    return True


def _outside_names(wheels: list[Wheel]) -> list[str]:
    """Requirements of the package (without extras) that no pushed wheel satisfies, by project name."""
    pushed = {w.name for w in wheels}
    names = (re.split(r"[\s<>=!~;\[(@]", r, maxsplit=1)[0] for w in wheels for r in w.requires if "extra ==" not in r)
    return sorted({re.sub(r"[-_.]+", "-", n).lower() for n in names} - pushed - {"verifiers", "datasets"})


@env.callback()
def main() -> None:
    """Environment packages: the code that runs train on."""


@env.command(epilog=EPILOG)
def push(
    ctx: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A Python project with load_environment().")],
    owner: Annotated[
        str | None, typer.Option(help="Owner in owner/name; else tool.rlrun.owner in its pyproject.toml.")
    ] = None,
    bucket: Bucket = "",
    prefix: Prefix = "",
    endpoint: Endpoint = None,
    include: Annotated[
        list[Path] | None, typer.Option(help="A wheel to put beside it, for a dependency; repeatable.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace other content under this version.")] = False,
) -> None:
    """Build DIR into a wheel and put it where runs find it. Prints the id that a run's file names it by."""
    if not bucket:
        raise CliError("no bucket given", "give --bucket, or set RLRUN_S3_BUCKET", code=INVALID)
    project = read_project(folder)
    named = owner_of(project, owner)
    extra = [read_wheel(path) for path in include or []]
    wheel = build_wheel(folder)
    # The package itself comes last: whoever sees it sees what it needs, too.
    wheels = [*extra, wheel]
    target = environment_package(bucket, prefix, named, wheel.name) / wheel.version
    try:
        store = open_store(ctx, endpoint)
        written = upload(store, target, wheels, force=force)
    except StoreError as problem:
        raise CliError(f"cannot push to {target}: {problem}") from problem
    output.say(f"{'pushed' if written else 'already there, nothing changed:'} version {wheel.version} at {target}")
    if outside := _outside_names(wheels):
        output.say(f"its image must hold what is not pushed with it: {', '.join(outside)} (or --include their wheels)")
    typer.echo(f"{named}/{wheel.name}")
