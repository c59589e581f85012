"""Environment packages in S3, from a cached list of their folder."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from fnmatch import fnmatchcase

from rlrun.storage.layout import ENVIRONMENTS_FOLDER, S3Uri
from rlrun.storage.store import StoredObject

from rlrun_server.rest.base.stored_files import PlatformStorage, wait_for_files
from rlrun_server.rest.base.tenant_queue import TenantQueue
from rlrun_server.runtime.caches import FetchedValue

FRESH_SECONDS = 15.0
"""Seconds for which the list is cached."""
MAX_FILES = 50_000
"""Maximum number of files, of all packages, that are listed."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}")
FILE_PARTS = 4
"""Number of parts of a file's path: owner, name, version and file."""


@dataclass(frozen=True)
class Package:
    """Environment package in the catalog."""

    owner: str
    name: str
    versions: int
    """Number of versions."""
    version: str
    """The version that was pushed last."""
    pushed: datetime

    @property
    def id(self) -> str:
        """Id with which runs select the package."""
        return f"{self.owner}/{self.name}"


@dataclass(frozen=True)
class Packages:
    """Result of listing all packages."""

    items: tuple[Package, ...]
    is_complete: bool
    """False if there are too many files to list them all."""


class EnvironmentCatalog:
    """Catalog of the packages of all owners. It is at most FRESH_SECONDS old while S3 responds."""

    def __init__(
        self, storage: PlatformStorage, owners: Mapping[str, Sequence[str]], clock: Callable[[], float]
    ) -> None:
        """`owners` maps each listed owner to the patterns of its namespaces."""
        self._storage = storage
        self._thread = TenantQueue(1, "environments")
        self._folder = storage.root / ENVIRONMENTS_FOLDER
        self._owners = owners
        self._packages = FetchedValue(self._read, clock)

    def is_listed(self, owner: str) -> bool:
        """Return whether only namespaces that are assigned to the owner may use the owner's packages."""
        return owner in self._owners

    def has_namespace(self, owner: str, namespace: str) -> bool:
        """Return whether the namespace is assigned to the owner in the list of owners."""
        return bool(namespace) and any(fnmatchcase(namespace, pattern) for pattern in self._owners.get(owner, ()))

    async def read(self) -> Packages:
        """Return all packages. Raises RestError."""
        # If listing takes longer than this request waits, it continues, and later requests use its result.
        return await wait_for_files("environment packages", self._packages.value(FRESH_SECONDS))

    def close(self) -> None:
        """Stop the thread without waiting for S3."""
        self._thread.close()

    async def _read(self) -> Packages:
        await self._storage.renew()
        return await self._thread.run("", self._load)

    def _load(self) -> Packages:
        """Read the list. Runs in a thread."""
        files: list[StoredObject] = []
        for stored in self._storage.store.walk(self._folder):
            if len(files) == MAX_FILES:
                return Packages(packages_of(files, self._folder), is_complete=False)
            files.append(stored)
        return Packages(packages_of(files, self._folder), is_complete=True)


def packages_of(files: Iterable[StoredObject], folder: S3Uri) -> tuple[Package, ...]:
    """Return the packages, sorted by owner and name. Skips objects whose keys a push cannot have written."""
    versions: dict[tuple[str, str], dict[str, datetime]] = {}
    for stored in files:
        parts = stored.key.removeprefix(f"{folder.key}/").split("/")
        if len(parts) != FILE_PARTS or not parts[3].endswith(".whl"):
            continue
        owner, name, version = parts[:3]
        if NAME.fullmatch(owner) and NAME.fullmatch(name) and VERSION.fullmatch(version):
            found = versions.setdefault((owner, name), {})
            found[version] = max(stored.modified, found.get(version, stored.modified))
    packages = []
    for (owner, name), times in sorted(versions.items()):
        newest = max(times, key=lambda version: (times[version], version))
        packages.append(Package(owner, name, len(times), newest, times[newest]))
    return tuple(packages)
