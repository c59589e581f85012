"""Serves the run's environment packages to its environment pods, which have no S3 credentials.

The digest of a package is the SHA-256 of the lines that `sha256sum *.whl` prints for its wheels, ordered by name. It is
computed from the delivered bytes, not from metadata that S3 or a user provides.
"""

import asyncio
import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Mapping

from rlrun.api.base.names import similar_packages
from rlrun.api.run_status import EnvironmentPackage
from rlrun.constants import MAX_PACKAGE_BYTES, ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.service.errors import FatalError
from rlrun.storage.errors import StoreError
from rlrun.storage.layout import S3Uri
from rlrun.storage.package_versions import in_order, matching, newest
from rlrun.storage.store import Store

from rlrun_orchestrator.inference.gateway.package_pins import PackageChanged, PackagePins, PackageRef

NAME = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?$")
VERSION = re.compile(r"^[A-Za-z0-9](?:[A-Za-z0-9.+!_-]*[A-Za-z0-9])?$")
MISSING = Reason.ENVIRONMENT_PACKAGE_MISSING


class PackageMissing(Exception):
    """Error for a package that is not in S3, is too large, is not used by the run, or has an invalid id or version."""

    def __init__(self, message: str, reason: Reason = MISSING) -> None:
        super().__init__(message)
        self.problem = Problem(reason=reason, message=message)


def package_digest(wheels: Mapping[str, str]) -> str:
    """Return the digest of a package, from its wheels' names and SHA-256s in hexadecimal."""
    # Escape names, because a name with a line break must not look like two wheels.
    lines = [f"{wheels[name]}  {name.encode('unicode_escape').decode()}\n" for name in sorted(wheels)]
    return f"sha256:{hashlib.sha256(''.join(lines).encode()).hexdigest()}"


class PackageReader:
    """Reader for wheels below `environments_uri`/{owner}/{name}/{version}/.

    Only packages in `used` are served, because user code could request packages of other tenants. `pins` records the
    packages with which the run started.
    """

    def __init__(
        self, store: Store, environments_uri: str, used: Iterable[PackageRef], pins: PackagePins | None = None
    ) -> None:
        self.pins = pins or PackagePins()
        self._store = store
        self._root = S3Uri.parse(environments_uri)
        self._used = frozenset(used)
        self._change: PackageChanged | None = None
        self._changed = asyncio.Event()
        self._reading: dict[PackageRef, asyncio.Task[tuple[EnvironmentPackage, bytes]]] = {}

    async def tar(self, owner: str, name: str, version: str | None) -> tuple[str, bytes]:
        """Return a package's version and an uncompressed tar of the version's wheels.

        Raises PackageMissing, PackageChanged, StoreError.
        """
        wanted = f"{owner}/{name}" + (f" {version}" if version else "")
        if not NAME.match(owner) or not NAME.match(name) or (version and not VERSION.match(version)):
            raise PackageMissing(f"{wanted} is not an environment id with a valid version; write owner/name")
        ref = PackageRef.of(f"{owner}/{name}", version)
        if ref not in self._used:
            raise PackageMissing(f"environment package {wanted} is not used by this run; add it to env or eval.env")
        try:
            found, data = await self._shared_read(ref)
            self.pins.add(ref, found)
        except PackageChanged as change:
            self._change = change
            self._changed.set()
            raise
        return found.version, data

    async def _shared_read(self, ref: PackageRef) -> tuple[EnvironmentPackage, bytes]:
        """Read a package once for all concurrent requests, because an environment may have many pods that start
        at the same time, and a package may take half a gigabyte of memory.
        """
        reading = self._reading.get(ref)
        if reading is None:
            reading = asyncio.create_task(asyncio.to_thread(self._read, ref, self.pins.of(ref)), name=f"read {ref.id}")
            self._reading[ref] = reading
            reading.add_done_callback(lambda _: self._reading.pop(ref))
        # A request that ends must not cancel the read for other requests.
        return await asyncio.shield(reading)

    async def watch(self) -> None:
        """Raise FatalError once a requested package differs from the package with which the run started, or from its
        digest in the spec.
        """
        await self._changed.wait()
        assert self._change is not None
        raise FatalError(self._change.problem, ExitCode.CONFIGURATION)

    async def read_installed(self, ref: PackageRef, version: str | None) -> None:
        """Record a package that an earlier process delivered.

        `version` is the version that the package's environment reports, which is used if `ref` has none. If both are
        None, the newest version is recorded. Raises PackageMissing if the package is not in S3 or unusable,
        PackageChanged if it differs from the recorded one, and StoreError if S3 fails.
        """
        installed = PackageRef(ref.owner, ref.name, ref.version or version)
        found, _ = await asyncio.to_thread(self._read, installed, None)
        self.pins.add(ref, found.model_copy(update={"requested_version": ref.version}))

    def _read(self, ref: PackageRef, recorded: EnvironmentPackage | None) -> tuple[EnvironmentPackage, bytes]:
        folder = self._root / ref.owner / ref.name
        versions = self._store.list_folders(folder)
        if recorded:
            chosen: str | None = recorded.version
        else:
            chosen = matching(ref.version, versions) if ref.version else newest(versions)
        if recorded and chosen not in versions:
            raise _package_removed(ref, recorded, folder)
        if chosen is None or chosen not in versions:
            known = f"; versions there: {', '.join(in_order(versions))}" if versions else self._neighbours(ref)
            wanted = ref.id + (f" {ref.version}" if ref.version else "")
            raise PackageMissing(
                f"environment package {wanted} is not in {self._root}{known}; upload it with `rlrun env push` or "
                "correct env[].id"
            )
        chosen_folder = folder / chosen
        files = self._store.list_files(chosen_folder)
        wheels = {file: size for file, size in files if file.endswith(".whl") and "/" not in file}
        if (size := sum(wheels.values())) > MAX_PACKAGE_BYTES:
            # Check before reading, because a user's package could exhaust the orchestrator's memory.
            message = f"the wheels in {chosen_folder} total {size:,} bytes; the maximum is {MAX_PACKAGE_BYTES:,}"
            raise PackageMissing(message, Reason.ENVIRONMENT_INSTALL_FAILED)
        if recorded and not wheels:
            raise _package_removed(ref, recorded, folder)
        if not wheels:
            raise PackageMissing(f"{chosen_folder} has no wheels; upload the environment again with `rlrun env push`")
        target, digests = io.BytesIO(), dict[str, str]()
        with tarfile.open(fileobj=target, mode="w") as archive:
            for wheel in wheels:
                data = self._store.get_bytes(chosen_folder / wheel, wheels[wheel])
                digests[wheel] = hashlib.sha256(data).hexdigest()
                entry = tarfile.TarInfo(wheel)
                entry.size = len(data)
                archive.addfile(entry, io.BytesIO(data))
        package = EnvironmentPackage(
            id=ref.id, requested_version=ref.version, version=chosen, digest=package_digest(digests)
        )
        return package, target.getvalue()

    def _neighbours(self, ref: PackageRef) -> str:
        """Return a hint with the owner's packages whose names are most similar to the missing package's name, or an
        empty string if there are none or S3 fails.
        """
        try:
            names = self._store.list_folders(self._root / ref.owner)
        except StoreError:
            return ""
        similar = similar_packages(ref.name, names)
        return f"; similar packages: {', '.join(f'{ref.owner}/{name}' for name in similar)}" if similar else ""


def _package_removed(ref: PackageRef, recorded: EnvironmentPackage, folder: S3Uri) -> PackageChanged:
    return PackageChanged(
        f"environment package {ref.id} {recorded.version}, with which this run started ({recorded.digest}), is no "
        f"longer in {folder}; start a new run with another version, and set its checkpointId to continue "
        "from the newest checkpoint"
    )
