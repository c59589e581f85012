"""Reading artifacts: what programs need of S3 that never write to it."""

from pathlib import Path
from typing import Protocol

from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import Manifest


class ArtifactReader(Protocol):
    """The reading half of `rlrun.storage.store.Store`. All methods raise StoreError."""

    def read_manifest(self, uri: S3Uri) -> Manifest | None:
        """Return the artifact's manifest, None without one."""
        ...

    def download(self, uri: S3Uri, dest: Path, manifest: Manifest | None = None) -> Manifest:
        """Download the verified artifact to the folder `dest`, all or nothing. `manifest`: where the caller has it."""
        ...

    def list_folders(self, uri: S3Uri) -> list[str]:
        """Return the sorted names of the folders directly below `uri`."""
        ...
