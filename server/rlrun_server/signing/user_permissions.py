"""Determines the permission that a user needs for a request to S3.

Users read a run's files with a permission in the run's namespace, which the key contains. Environment packages
belong to an owner. The chart lists owners with their namespaces (`runs.environmentOwners`): packages of a listed owner
can be read and written only in these namespaces. An owner that is not listed is the namespace of the same name, and all
users may read its packages.
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from rlrun.storage.layout import ENVIRONMENTS_FOLDER, MODELS_FOLDER, S3Uri

from rlrun_server.authentication.users import Check
from rlrun_server.signing.s3_request import Operation, RequestNotAllowed, S3Request

READ = frozenset({Operation.read, Operation.list})
FOLDERS: Mapping[str, tuple[str, str]] = {
    "metrics": ("rlruns", "metrics"),
    "rollouts": ("rlruns", "rollouts"),
    "logs": ("rlruns", "log"),
    "checkpoints": ("rlcheckpoints", "files"),
    "adapters": ("rladapters", "files"),
}
"""Resource and subresource of the permission to `get` each folder of a run. Users cannot write to these folders."""
PACKAGES = "rlenvironments"
"""Resource that is used only in permissions. It has no objects."""
NAMESPACE_AND_RUN = 2
OWNER_AND_NAME = 2
PACKAGE_FIELDS = ("owner", "name", "version", "file")
"""Parts of the key of a package's file. Names that do not begin with a letter or digit, such as `.owner`, are reserved
for the platform: on a server that stores objects in a file system, such a package would take the place of the
owner's record."""

Owners = Mapping[str, Sequence[str]]
"""Namespace patterns by listed owner."""


def required_check(request: S3Request, root: S3Uri, owners: Owners, namespace: str, *, once: bool) -> Check | None:
    """Return the permission that the request needs, or None if every user may send it.

    `namespace` is the namespace that the user works in. `once` is True if S3 rejects the request when the object
    exists. Raises RequestNotAllowed if no user may send the request.
    """
    prefix = f"{root.key}/" if root.key else ""
    if request.bucket != root.bucket or not request.key.startswith(prefix):
        raise RequestNotAllowed("the URL is outside the platform's folder")
    # The prefix of a list ends with a slash, so its last segment is empty.
    head, *rest = request.key.removeprefix(prefix).split("/")
    if head == ENVIRONMENTS_FOLDER:
        return _package_check(request.operation, rest, owners, namespace, once=once)
    if head == MODELS_FOLDER:
        raise RequestNotAllowed("users may not access model weights")
    return _run_check(request.operation, head, rest)


def written_owner(request: S3Request, root: S3Uri) -> str | None:
    """Return the owner of the package that a permitted request changes, or None if the request changes no package."""
    head, owner, *_ = request.key.removeprefix(f"{root.key}/" if root.key else "").split("/")
    return owner if head == ENVIRONMENTS_FOLDER and request.operation not in READ else None


def _run_check(operation: Operation, namespace: str, rest: list[str]) -> Check:
    folder = rest[1] if len(rest) > NAMESPACE_AND_RUN else ""
    if folder not in FOLDERS:
        raise RequestNotAllowed(f"users may only use the folders {', '.join(FOLDERS)} of a run")
    if operation not in READ:
        raise RequestNotAllowed(f"users may read but not change the {folder} of a run")
    resource, subresource = FOLDERS[folder]
    return Check("get", resource, namespace, subresource)


def _package_check(
    operation: Operation, rest: list[str], owners: Owners, namespace: str, *, once: bool
) -> Check | None:
    for field, part in zip(PACKAGE_FIELDS, rest, strict=False):
        if part and not part[0].isalnum():
            raise RequestNotAllowed(
                f"the {field} {part!r} of an environment package must begin with a letter or digit: choose another one"
            )
    if len(rest) <= OWNER_AND_NAME:
        raise RequestNotAllowed("specify the owner and name of an environment package")
    owner = rest[0]
    if operation in READ and owner not in owners:
        return None
    place = _namespace_of(owner, owners, namespace)
    if operation in READ:
        return Check("get", PACKAGES, place)
    # Servers on a file system keep the folder of a version as a key with a slash at its end.
    if len(rest) != OWNER_AND_NAME + 2 or not (rest[-1] or operation is Operation.delete):
        raise RequestNotAllowed("files of a package are at environments/{owner}/{name}/{version}/{file}")
    # A version is written once. A user who may delete the version may also replace it.
    return Check("create" if operation is Operation.write and once else "delete", PACKAGES, place)


def _namespace_of(owner: str, owners: Owners, namespace: str) -> str:
    if owner not in owners:
        return owner
    if namespace and any(fnmatchcase(namespace, pattern) for pattern in owners[owner]):
        return namespace
    raise RequestNotAllowed(
        f"{f'namespace {namespace}' if namespace else 'a request without a namespace'} may not use the packages of "
        f"{owner}; the platform team lists the permitted namespaces in runs.environmentOwners"
    )
