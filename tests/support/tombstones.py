"""Tombstones that a bucket lacks."""

import re
from collections.abc import Collection

from rlrun.garbage_collection.tombstones import artifact_tombstone
from rlrun.storage.layout import DELETED_FOLDER, S3Uri
from rlrun.storage.store import Store


def lacks_tombstone(store: Store, root: S3Uri, namespace: str, kept: Collection[str]) -> set[str]:
    """Return the keys of missing tombstones of the namespace's artifacts in S3, all but those with the URIs `kept`."""
    names = [name for name, _ in store.list_files(root / namespace) if re.search(r"/step-\d+/manifest\.json$", name)]
    uris = [root / namespace / name.rpartition("/")[0] for name in names]
    expected = [artifact_tombstone(root, uri) for uri in uris if str(uri) not in kept]
    return {uri.key for uri in expected if uri} - {item.key for item in store.walk(root / DELETED_FOLDER)}
