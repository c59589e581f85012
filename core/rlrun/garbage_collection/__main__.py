"""`python -m rlrun.garbage_collection`: one sweep, as the chart's CronJob makes it. Lists; removes only with --delete.

`rlrun gc` is the same for people. This one needs nothing but what the operator's image has: S3 comes from
RLRUN_S3_BUCKET, RLRUN_S3_PREFIX and the AWS_* variables, the cluster from the pod's ServiceAccount or a kubeconfig.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime

from rlrun.garbage_collection.cluster_source import ClusterSource
from rlrun.garbage_collection.planner import plan_deletions
from rlrun.garbage_collection.report import document, line, parse_age
from rlrun.garbage_collection.sweep import remove, take_snapshot
from rlrun.kube.errors import ApiError
from rlrun.kube.sync_client import SyncApiTransport, SyncKubeClient
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import Store, StoreError

FAILED, INVALID = 1, 2


def arguments(given: Sequence[str] | None) -> argparse.Namespace:
    """The options. Exits with 2 on wrong ones."""
    parser = argparse.ArgumentParser("python -m rlrun.garbage_collection", description="List what belongs to nothing.")
    parser.add_argument("-n", "--namespace", action="append", default=[], help="only this namespace; repeatable")
    parser.add_argument("--older-than", default="24h", help="nothing younger is touched: 90m, 24h, 7d (default 24h)")
    parser.add_argument("--delete", action="store_true", help="remove it")
    parser.add_argument("-o", "--output", choices=["text", "json"], default="text")
    found = parser.parse_args(given)
    try:
        found.older_than = parse_age(found.older_than)
    except ValueError as problem:
        parser.error(f"--older-than: {problem}")
    if not os.environ.get("RLRUN_S3_BUCKET"):
        parser.error("set RLRUN_S3_BUCKET (and RLRUN_S3_PREFIX) as in the operator's settings")
    return found


def sweep(options: argparse.Namespace) -> int:
    """Exit code: 0 when all is said or removed, 1 when something could not be. Raises StoreError, ApiError."""
    from kubernetes import client, config

    config.load_config()
    store = Store()
    cluster = ClusterSource(SyncKubeClient(SyncApiTransport(client.ApiClient())))
    root = S3Uri(os.environ["RLRUN_S3_BUCKET"], os.environ.get("RLRUN_S3_PREFIX", "").strip("/"))
    now, failed = datetime.now(UTC), 0
    for namespace in options.namespace or [None]:
        world = take_snapshot(store, cluster, root, namespace)
        items = plan_deletions(world, now, options.older_than)
        removed = []
        if options.delete:
            removed = list(remove(store, cluster, root, namespace, items, now, options.older_than))
        failed += sum(r.problem is not None for r in removed)
        if options.output == "json":
            print(json.dumps(document(items, removed, world.notes)))
            continue
        for note in world.notes:
            print(f"note: {note}", file=sys.stderr)
        for item in items if not options.delete else []:
            print(line(item, now))
        for done in removed:
            print(f"{'removed' if done.problem is None else f'NOT removed ({done.problem})'}: {line(done.item, now)}")
        print(
            f"{len(items)} found in {namespace or 'all namespaces'}" + ("" if options.delete else "; nothing removed")
        )
    return FAILED if failed else 0


def main(given: Sequence[str] | None = None) -> int:
    """The exit code: 0 fine, 1 S3 or the cluster said no, 2 wrong options."""
    options = arguments(given)
    try:
        return sweep(options)
    except (StoreError, ApiError) as problem:
        print(f"the sweep ends here: {problem}", file=sys.stderr)
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
