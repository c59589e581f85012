"""Permissions of pods in S3: the operations that each role may perform on each folder of its run."""

from collections.abc import Mapping

from rlrun.protocol.storage_access import StorageGrant, StorageRole
from rlrun.storage.layout import S3Uri

from rlrun_server.signing.s3_request import Operation, S3Request

READ = frozenset({Operation.read, Operation.list})
WRITE = frozenset({*READ, Operation.write})
CHANGE = frozenset({*WRITE, Operation.delete})

FOLDERS: Mapping[StorageRole, Mapping[str, frozenset[Operation]]] = {
    StorageRole.trainer: {"policy": CHANGE, "recovery": CHANGE, "checkpoints": WRITE, "adapters": WRITE},
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
"""Permitted operations by role and folder of the run. Only the operator writes logs and deletes artifacts."""
WRITTEN_ONCE = frozenset({"checkpoints", "adapters"})
"""Folders in which no object may be replaced, because other runs start from these files and pools deploy them."""
REPLACED = frozenset({"checkpoints/saved-states.json"})
"""Files in these folders that may be replaced: the names of the saved states of a client's program."""
FILES: Mapping[StorageRole, Mapping[str, frozenset[Operation]]] = {
    StorageRole.orchestrator: {"run.json": WRITE},
}
"""Permitted operations by role and by the path of a file in the run's folder."""


def is_allowed(grant: StorageGrant, request: S3Request) -> bool:
    """Return whether the grant and its role allow the request."""
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
    if request.may_replace and name in WRITTEN_ONCE and path not in REPLACED:
        return False
    if "/" in path and request.operation in FOLDERS[grant.role].get(name, frozenset()):
        return True
    return request.operation in FILES.get(grant.role, {}).get(path, frozenset())


def is_written_once(grant: StorageGrant, request: S3Request) -> bool:
    """Return whether the request concerns an object that must not be replaced."""
    folder = S3Uri.parse(grant.folder) if grant.folder else None
    if folder is None or not _is_below(folder, request):
        return False
    path = request.key.removeprefix(f"{folder.key}/")
    return path.partition("/")[0] in WRITTEN_ONCE and path not in REPLACED


def _is_list_of(folder: S3Uri, request: S3Request) -> bool:
    return bool(folder.key) and request.bucket == folder.bucket and request.key == f"{folder.key}/"


def _is_below(folder: S3Uri, request: S3Request) -> bool:
    return bool(folder.key) and request.bucket == folder.bucket and request.key.startswith(f"{folder.key}/")
