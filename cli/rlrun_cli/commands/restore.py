"""Command `restore`: recreates RLCheckpoints and RLAdapters from the manifests in the bucket."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from rlrun_cli.remote.run_storage import with_sweep
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CliError

if TYPE_CHECKING:
    from rlrun.garbage_collection.lost_artifacts import LostArtifact
    from rlrun.garbage_collection.sweep import Sweep

RESTORE_EPILOG = """Examples:

  rlrun restore
  rlrun restore -n team-a
  rlrun restore --create

For administrators with credentials for the bucket, after a cluster was rebuilt or etcd was restored: see "Back up and \
restore" in docs/guides/operate.md. Existing objects are not changed, so the command can be repeated. `sharedWith`, \
`expiresAt` and `deployed` are not stored in the bucket: set them again. Artifacts that have a tombstone or whose run \
exists are skipped.

Exit codes: 0 all objects listed or created; 1 an object could not be read or created; 2 invalid command line."""
HEADERS = ["KIND", "NAMESPACE", "NAME", "SIZE", "URI"]


@dataclass(frozen=True)
class _Findings:
    """Artifacts whose lost objects can be recreated, and the reasons why other lost objects cannot."""

    lost: "list[LostArtifact]"
    problems: list[str]


@with_sweep
def restore(
    sweep: "Sweep",
    create: Annotated[bool, typer.Option("--create", help="Create the listed objects.")] = False,
) -> None:
    """List the checkpoints and adapters in the bucket whose RLCheckpoint or RLAdapter is missing in the cluster, in all
    namespaces or, with -n, in one.
    """
    from rlrun.kube.errors import ApiError

    if create:
        sweep.require_installation()
    found = _find(sweep)
    failed = list(found.problems)
    made = 0
    for artifact in found.lost if create else []:
        meta = artifact.obj["metadata"]
        try:
            sweep.cluster.record(artifact)
            made += 1
        except ApiError as problem:
            failed.append(f"{artifact.obj['kind']} {meta['namespace']}/{meta['name']}: {problem}")
    _show(found.lost, made, where=", ".join(sweep.namespaces) or "all namespaces", create=create)
    if failed:
        raise CliError(
            f"artifacts that {'were not' if create else 'cannot be'} recreated: {len(failed)}",
            "correct these causes and repeat the command: create missing namespaces, and restore missing files from a "
            "backup of the bucket",
            details=failed,
        )


def _find(sweep: "Sweep") -> _Findings:
    from rlrun.garbage_collection.lost_artifacts import NotRestorable, find_lost
    from rlrun.garbage_collection.lost_artifacts import restore as restore_artifact
    from rlrun.storage.store import Corrupt

    found = _Findings([], [])
    for folder, uri in find_lost(sweep.take_snapshot()):
        try:
            stored = sweep.store.read_stored_manifest(uri)
            if stored is not None:
                found.lost.append(restore_artifact(folder, uri, stored, dict(sweep.store.list_files(uri))))
        except (NotRestorable, Corrupt) as problem:
            found.problems.append(f"{uri}: {problem}")
    return found


def _show(lost: "list[LostArtifact]", made: int, *, where: str, create: bool) -> None:
    if not lost:
        output.notice(f"All checkpoints and adapters in {where} have objects.")
        return
    output.print_table(
        HEADERS,
        [
            [
                artifact.obj["kind"],
                artifact.obj["metadata"]["namespace"],
                artifact.obj["metadata"]["name"],
                output.size(artifact.status["sizeBytes"]),
                artifact.obj["spec"]["uri"],
            ]
            for artifact in lost
        ],
    )
    if create:
        output.notice(f"Created: {made} of {len(lost)} objects.")
    else:
        output.notice(f"Missing objects in {where}: {len(lost)}; none was created. Create them: rlrun restore --create")
