"""Environment packages of the run for its environment pods, which have no S3 credentials."""

import asyncio
import io
import re
import tarfile
from collections.abc import Iterable
from typing import NamedTuple

from packaging.version import InvalidVersion, Version
from rlrun.constants import Reason
from rlrun.protocol.problem import Problem
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import Store

NAME = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$")
VERSION = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9.+!_-]*[A-Za-z0-9])?$")
MISSING = Reason.ENVIRONMENT_PACKAGE_MISSING


class PackageRef(NamedTuple):
    """Package of an entry in env or eval.env. Without a version it is the newest one."""

    owner: str
    name: str
    version: str | None

    @classmethod
    def of(cls, package_id: str, version: str | None) -> "PackageRef":
        """Return the reference of an id `owner/name`."""
        owner, _, name = package_id.partition("/")
        return cls(owner, name, version)


class PackageMissing(Exception):
    """The package or its version is not in S3."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.problem = Problem(reason=MISSING, message=message)


def newest(versions: list[str]) -> str | None:
    """Return the newest version by PEP 440, a pre-release only if there is no other. Other names are ignored."""
    parsed: list[tuple[Version, str]] = []
    for text in versions:
        try:
            parsed.append((Version(text), text))
        except InvalidVersion:
            continue
    final = [pair for pair in parsed if not pair[0].is_prerelease]
    return max(final or parsed)[1] if parsed else None


class Packages:
    """Reads wheels below `environments_uri`/{owner}/{name}/{version}/.

    Only packages in `used` are served: user code can ask for others, which may belong to other tenants.
    """

    def __init__(self, store: Store, environments_uri: str, used: Iterable[PackageRef]) -> None:
        self._store = store
        self._root = S3Uri.parse(environments_uri)
        self._used = frozenset(used)

    async def tar(self, owner: str, name: str, version: str | None) -> tuple[str, bytes]:
        """Return the version and an uncompressed tar of its wheels. Raises PackageMissing, StoreError."""
        return await asyncio.to_thread(self._tar, owner, name, version)

    def _tar(self, owner: str, name: str, version: str | None) -> tuple[str, bytes]:
        if not NAME.match(owner) or not NAME.match(name) or (version and not VERSION.match(version)):
            raise PackageMissing(f"{owner}/{name} {version or ''} is not the name of an environment: write owner/name")
        if PackageRef(owner, name, version) not in self._used:
            wanted = f"{owner}/{name}" + (f" {version}" if version else "")
            raise PackageMissing(f"environment package {wanted} is not one of this run: add it to env or eval.env")
        folder = self._root / owner / name
        versions = self._store.list_folders(folder)
        chosen = version or newest(versions)
        if chosen is None or chosen not in versions:
            known = f"; versions there: {', '.join(versions)}" if versions else ""
            wanted = f"{owner}/{name}" + (f" {version}" if version else "")
            raise PackageMissing(
                f"environment package {wanted} is not in {self._root}{known}: "
                f"upload it with `rlrun env push` or correct env[].id"
            )
        chosen_folder = folder / chosen
        wheels = [
            file for file, _ in self._store.list_files(chosen_folder) if file.endswith(".whl") and "/" not in file
        ]
        if not wheels:
            raise PackageMissing(f"{chosen_folder} holds no wheel: upload the environment again with `rlrun env push`")
        target = io.BytesIO()
        with tarfile.open(fileobj=target, mode="w") as archive:
            for wheel in wheels:
                data = self._store.get_bytes(chosen_folder / wheel)
                entry = tarfile.TarInfo(wheel)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        return chosen, target.getvalue()
