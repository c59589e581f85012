"""Permissions: a table of roles, operations and folders. Pure."""

from collections.abc import Mapping
from fnmatch import fnmatchcase

from rlrun.protocol.storage_access import StorageGrant, StorageRole
from rlrun.storage.layout import MANIFEST, S3Uri

from rlrun_server.signing.s3_request import Operation, S3Request

READ = frozenset({Operation.read, Operation.list})
WRITE = frozenset({*READ, Operation.write})
CHANGE = frozenset({*WRITE, Operation.delete})

FOLDERS: Mapping[StorageRole, Mapping[str, frozenset[Operation]]] = {
    StorageRole.trainer: {"policy": CHANGE, "checkpoints": WRITE, "adapters": WRITE},
    StorageRole.orchestrator: {
        "metrics": WRITE,
        "rollouts": WRITE,
        "orchestrator": WRITE,
        "wandb": WRITE,
        "checkpoints": READ,
    },
    StorageRole.inference: {"policy": READ},
    StorageRole.fetcher: {},
    StorageRole.serving: {},
}
"""Operations by role and folder of the run. The operator alone writes logs, and deletes artifacts."""
FILES: Mapping[StorageRole, Mapping[str, frozenset[Operation]]] = {
    StorageRole.orchestrator: {"run.json": WRITE},
    # An upload that replaces an unfinished artifact deletes its manifest first.
    StorageRole.trainer: {
        f"checkpoints/*/{MANIFEST}": frozenset({Operation.delete}),
        f"adapters/*/{MANIFEST}": frozenset({Operation.delete}),
    },
}
"""Operations by role and path of a file in the folder of the run."""


def is_allowed(grant: StorageGrant, request: S3Request) -> bool:
    """Return whether the request is one that the grant and its role allow."""
    if request.operation in READ and any(_is_below(S3Uri.parse(uri), request) for uri in grant.readable):
        return True
    if request.operation is Operation.list and any(_is_list_of(S3Uri.parse(uri), request) for uri in grant.listable):
        return True
    if not grant.folder:
        return False
    folder = S3Uri.parse(grant.folder)
    if not _is_below(folder, request):
        return False
    path = request.key.removeprefix(f"{folder.key}/")
    name = path.partition("/")[0]
    if "/" in path and request.operation in FOLDERS[grant.role].get(name, frozenset()):
        return True
    files = FILES.get(grant.role, {})
    return any(
        fnmatchcase(path, pattern) and path.count("/") == pattern.count("/") and request.operation in operations
        for pattern, operations in files.items()
    )


def _is_list_of(folder: S3Uri, request: S3Request) -> bool:
    return bool(folder.key) and request.bucket == folder.bucket and request.key == f"{folder.key}/"


def _is_below(folder: S3Uri, request: S3Request) -> bool:
    return bool(folder.key) and request.bucket == folder.bucket and request.key.startswith(f"{folder.key}/")
