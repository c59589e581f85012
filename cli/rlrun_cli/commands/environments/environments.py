"""Commands `env push` and `env list`: environment packages in S3, where runs find them by `owner/name`.

A version is immutable. Pushing the same files again changes nothing; pushing different files under the same version is
rejected, because otherwise runs could train on different code under one name.
"""

import zipfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rlrun.storage.layout import S3Uri, environment_package
from rlrun.storage.package_versions import matching
from rlrun.storage.store import Store

from rlrun_cli.inputs.bundle.dependency_bundle import check_size, describe, find_dependencies, is_complete
from rlrun_cli.inputs.environment_checks import check_name, check_requirements
from rlrun_cli.inputs.requirements import missing_packages
from rlrun_cli.inputs.wheel_builder import (
    Wheel,
    build_wheel,
    content_digest,
    package_owner,
    parse_wheel,
    project_name,
    read_project,
    read_wheel,
)
from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import cli_context, with_cluster
from rlrun_cli.remote.environment_list import PackageSummary, are_public, list_packages
from rlrun_cli.remote.run_storage import open_user_storage, s3_operation
from rlrun_cli.remote.server import Server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

PUSH_EPILOG = """Examples:

  rlrun env push examples/environments/reverse_text --owner me
  rlrun env push . -n team --include vendored/helper-1.0-py3-none-any.whl
  rlrun env push . --no-deps
  rlrun env push . --owner acme --private

Pods download nothing, so wheels of all requirements that the environment image lacks are pushed with the package. uv \
resolves them from your pip index (PIP_INDEX_URL, pip.conf) for Linux x86_64 and the image's Python, keeping the \
image's versions of all other packages. The added wheels are printed, with a warning if a newer version is held back. \
If requirements conflict, the conflicts are printed and nothing is pushed. --no-deps pushes without resolving \
requirements, and warns.

A requirement that is available only as a source distribution is built on this machine, which runs its code, as `pip \
install` does. Its wheel is pushed if it is platform-independent. --only-binary=:all: or --only-binary=NAME disables \
such builds.

Prints the id for env.id of a run. The owner is a namespace, or a name that the platform team has assigned to \
namespaces (runs.environmentOwners in the chart; -n selects one of them). A pushed version is immutable: increase the \
version to push other files. All packages of an owner are public unless the platform team has listed the owner in \
runs.environmentOwners. --private refuses to push if the owner's packages are public. Requires `create rlenvironments` \
in the namespace; --force requires `delete rlenvironments`."""

VISIBILITIES = ("PUBLIC", "PRIVATE")
LIST_ENVIRONMENTS_EPILOG = """Examples:

  rlrun env list
  rlrun env list --owner me -o name
  rlrun env list -n team -o json

Packages of owners that the platform team has assigned to namespaces (runs.environmentOwners in the chart) are listed \
only for these namespaces, to users who may `get rlenvironments` there. All other packages are public. A push is \
visible after up to 15 seconds."""


def stored_wheels(store: Store, folder: S3Uri, wheels: list[Wheel]) -> set[str] | None:
    """Return the names of the wheel files that `folder` already contains, or None if these files differ from `wheels`.
    Raises StoreError.

    The last wheel is the package itself. After an interrupted push, `folder` does not contain it.
    """
    stored = {name for name, _ in store.list_files(folder) if name.endswith(".whl")}
    files = {wheel.file for wheel in wheels}
    if not stored <= files or (wheels[-1].file in stored and stored != files):
        return None
    try:
        is_same = all(content_digest(store.get_bytes(folder / w.file)) == w.digest for w in wheels if w.file in stored)
    except zipfile.BadZipFile:
        return None
    return stored if is_same else None


def has_bundle(store: Store, folder: S3Uri, wheels: Sequence[Wheel]) -> bool:
    """Return whether `folder` contains `wheels` and wheels for all their requirements that the image lacks. Raises
    StoreError.

    Requirements are not resolved again: a pushed version keeps its dependencies even if the index has newer ones.
    """
    files = {name for name, _ in store.list_files(folder) if name.endswith(".whl") and "/" not in name}
    if not files.issuperset(wheel.file for wheel in wheels):
        return False
    others = sorted(files - {wheel.file for wheel in wheels})
    try:
        if any(content_digest(store.get_bytes(folder / wheel.file)) != wheel.digest for wheel in wheels):
            return False
    except zipfile.BadZipFile:
        return False
    try:
        bundle = [*(parse_wheel(Path(name), store.get_bytes(folder / name)) for name in others), *wheels]
    except CliError:
        return False
    # No stored wheel tells what an extra of a package in the image requires. A push that added wheels resolved it.
    return is_complete(bundle) or (bool(others) and not missing_packages(bundle))


def upload(store: Store, folder: S3Uri, wheels: list[Wheel], *, force: bool) -> bool:
    """Upload the wheels to `folder`. Returns False if `folder` already has the same content.

    Raises CliError if `folder` has different content and `force` is not set, StoreError if S3 fails.
    """
    stored = stored_wheels(store, folder, wheels)
    if stored is None:
        if not force:
            raise CliError(
                f"{folder} already contains different files for this version",
                "increase the version in pyproject.toml, or add --force if no run uses this version",
            )
        store.delete_prefix(folder)
    missing = [wheel for wheel in wheels if wheel.file not in (stored or ())]
    for wheel in missing:
        # Another user may push the same version now; S3 rejects the second push unless it is meant to replace the
        # first.
        store.put_bytes(folder / wheel.file, wheel.data, replace=stored is None)
    return bool(missing)


@with_cluster
def push(
    ctx: typer.Context,
    api: RemoteCluster,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder of a Python project that defines load_environment().")
    ],
    owner: Annotated[
        str | None, typer.Option(help="Owner in owner/name. Default: tool.rlrun.owner in pyproject.toml.")
    ] = None,
    include: Annotated[
        list[Path] | None, typer.Option(help="Wheel of a dependency to push with the package. Repeatable.")
    ] = None,
    no_deps: Annotated[
        bool, typer.Option("--no-deps", help="Do not add wheels of requirements that the image lacks.")
    ] = False,
    only_binary: Annotated[
        list[str] | None,
        typer.Option(
            "--only-binary",
            metavar="NAMES",
            help="Do not build source distributions of these packages: comma-separated names, or :all:. Repeatable.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the files of this version.")] = False,
    private: Annotated[
        bool, typer.Option("--private", help="Push only if the owner's packages are hidden from other namespaces.")
    ] = False,
    visibility: Annotated[
        str | None, typer.Option(metavar="PUBLIC|PRIVATE", help="PRIVATE (same as --private) or PUBLIC (the default).")
    ] = None,
    server: Server = None,
) -> None:
    """Build a wheel from DIR and upload it to S3, where runs find it. Prints the id for env.id of a run."""
    project = read_project(folder)
    check_name(project_name(project))
    owner_name = package_owner(project, owner)
    if (visibility or "PUBLIC").upper() not in VISIBILITIES:
        raise CliError(
            f"--visibility: {visibility!r} is not a valid visibility", "write PUBLIC or PRIVATE", code=INVALID
        )
    is_private = private or (visibility or "").upper() == "PRIVATE"
    extra = [read_wheel(path) for path in include or []]
    wheel = build_wheel(folder)
    # Upload the package last, so that its dependencies exist once it is visible.
    wheels = [*extra, wheel]
    check_size(wheels)
    package = f"{owner_name}/{wheel.name} {wheel.version}"
    with s3_operation(f"push {package}"):
        if is_private or visibility:
            _check_visibility(are_public(cli_context(ctx).server(api, server), owner_name), owner_name, is_private)
        storage = open_user_storage(ctx, api, server)
        folder_of_package = environment_package(storage.bucket, storage.prefix, owner_name, wheel.name)
        pushed = {path.partition("/")[0] for path, _ in storage.store.list_files(folder_of_package)}
        # A version spelled differently is the same version, and immutable as well.
        target = folder_of_package / (matching(wheel.version, pushed) or wheel.version)
        is_known = not (no_deps or force) and has_bundle(storage.store, target, wheels)
        if not is_known:
            if not no_deps:
                added = find_dependencies(wheels, only_binary=only_binary or ())
                wheels = [*added, *wheels]
                check_size(wheels)
                for each in added:
                    output.notice(f"Adding {describe(each)}")
            is_known = not upload(storage.store, target, wheels, force=force)
    output.notice(f"{'Nothing changed; S3 already has' if is_known else 'Pushed'} version {wheel.version} at {target}")
    if no_deps:
        for remark in check_requirements(wheels, is_bundled=False):
            output.notice(f"Warning: {remark.text}; {remark.hint}")
    typer.echo(f"{owner_name}/{wheel.name}")


def _check_visibility(is_public: bool | None, owner: str, is_private: bool) -> None:
    """Print who may use an owner's packages. `is_public` is None if this is not known.

    Raises CliError if `is_private` is set and the packages are, or may be, public.
    """
    if is_private and is_public is not False:
        fact = (
            "are public"
            if is_public
            else "may be public: this version of rlrun-server does not report their visibility"
        )
        raise CliError(
            f"packages of {owner} {fact}; nothing was pushed",
            "ask the platform team to list the owner in runs.environmentOwners in the chart, which hides all its "
            "packages from other namespaces, or push without --private",
        )
    if is_public is not None:
        users = "all namespaces" if is_public else f"the namespaces that the platform team has assigned to {owner}"
        output.notice(f"Packages of {owner} are {'public' if is_public else 'private'}: runs in {users} can use them")


def usable_packages(
    ctx: typer.Context, api: RemoteCluster, server: str | None, owner: str | None
) -> tuple[list[PackageSummary], bool]:
    """Return the packages that runs in the namespace may use, and whether the list is complete.

    Raises CliError, StoreError.
    """
    # An API key has its own namespace, which may differ from the kubeconfig's.
    has_own = bool(api.own_key()) and not api.is_namespace_chosen
    return list_packages(cli_context(ctx).server(api, server), "" if has_own else api.namespace, owner)


@with_cluster
def list_environments(
    ctx: typer.Context,
    api: RemoteCluster,
    owner: Annotated[str | None, typer.Option(help="List only packages of this owner.")] = None,
    fmt: Annotated[
        output.Format | None,
        typer.Option("-o", "--output", help="Print machine-readable output: json, yaml or name (ids)."),
    ] = None,
    server: Server = None,
) -> None:
    """List the environment packages that runs in the namespace may use."""
    with s3_operation("list environment packages"):
        packages, is_complete = usable_packages(ctx, api, server, owner)
    if fmt:
        output.emit_values([package.model_dump() for package in packages], "id", fmt)
    elif packages:
        now = datetime.now(UTC)
        rows = [
            [
                p.id,
                p.version,
                str(p.versions),
                "yes" if p.public else "no",
                output.age(_with_creation_time(p.pushed), now),
            ]
            for p in packages
        ]
        output.print_table(["ID", "NEWEST", "VERSIONS", "PUBLIC", "PUSHED"], rows)
    else:
        whose = f" of {owner}" if owner else ""
        output.notice(f"No environment packages{whose} yet. Push one: rlrun env push DIR --owner {api.namespace}")
    if not is_complete:
        output.notice("The list is incomplete, because there are too many packages. Select an owner with --owner.")


def _with_creation_time(time: str) -> dict[str, dict[str, str]]:
    return {"metadata": {"creationTimestamp": time}}
