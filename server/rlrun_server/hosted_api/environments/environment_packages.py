"""Environment packages in S3 for the hosted API: ids, versions and files."""

import base64
import binascii
import logging
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ParamSpec, TypeVar

from rlrun.api.base.names import ENVIRONMENT_ID, package_name, similar_packages
from rlrun.constants import Reason
from rlrun.kube.errors import ApiError
from rlrun.storage import package_versions
from rlrun.storage.errors import AlreadyExists, NotFound, StoreError
from rlrun.storage.layout import ENVIRONMENTS_FOLDER, S3Uri, environment_package

from rlrun_server.authentication.users import Check
from rlrun_server.rest.base.problems import RestError, from_own_api_error, invalid, not_found
from rlrun_server.rest.base.stored_files import PlatformStorage, StoredFiles, store_failure
from rlrun_server.signing.credentials import CredentialsMissing
from rlrun_server.signing.package_owners import PackageOwners
from rlrun_server.signing.s3_request import Operation, RequestNotAllowed, S3Request
from rlrun_server.signing.user_permissions import Owners, required_check


@dataclass(frozen=True)
class StoredVersion:
    """Version of a package, as stored in S3."""

    version: str
    files: tuple[str, ...]
    """Names of the version's wheels."""
    size: int
    """Total size of the files in bytes."""
    created: datetime


def newest_first(versions: Iterable[StoredVersion]) -> list[StoredVersion]:
    """Return the versions with wheels, newest first in the order of PEP 440. Invalid versions come last."""
    complete = _complete(versions)
    return [complete[text] for text in reversed(package_versions.in_order(complete))]


def latest(versions: Iterable[StoredVersion]) -> StoredVersion | None:
    """Return the newest version, for a run that specifies no version. A pre-release is returned only if there is no
    other version. Returns None if no version with wheels is valid under PEP 440.
    """
    complete = _complete(versions)
    text = package_versions.newest(complete)
    return complete[text] if text is not None else None


def find_version(wanted: str, versions: Iterable[StoredVersion]) -> StoredVersion | None:
    """Return the version that a run gets for `wanted`, for example 1.0.0 for `1.0`, or None if there is none."""
    complete = _complete(versions)
    text = package_versions.matching(wanted, complete)
    return complete[text] if text is not None else None


def _complete(versions: Iterable[StoredVersion]) -> dict[str, StoredVersion]:
    return {each.version: each for each in versions if each.files}


log = logging.getLogger(__name__)

THREADS = 2
MAX_WAITING = 8
"""Maximum number of calls of a tenant that wait for a thread."""
MAX_OBJECTS = 5000
"""Maximum number of objects of a package that are listed."""
MAX_WHEEL = 16 * 1024**2
"""Maximum size in bytes of a wheel that the server reads or writes. Up to THREADS wheels are read from S3 at a time."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.!+_-]{0,63}")
FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,200}\.whl")

P = ParamSpec("P")
T = TypeVar("T")


class EnvironmentPackages:
    """Packages of all owners. Methods raise RestError.

    Callers must check permissions with `check_of`. `tenant` is the caller's namespace. Access to S3 is shared fairly
    between tenants, regardless of whose packages they read.
    """

    def __init__(self, storage: PlatformStorage, owners: Owners, package_owners: PackageOwners) -> None:
        """`owners` is the list of owners from the settings."""
        self._package_owners = package_owners
        self._files = StoredFiles(storage, "packages", THREADS, waiting=MAX_WAITING)
        self._store = storage.store
        self._root = storage.root
        self._owners = owners

    def check_of(self, operation: Operation, owner: str, name: str, namespace: str) -> Check | None:
        """Return the permission that a user of the namespace needs for the operation, or None if every user may perform
        it.
        """
        _require_names(owner, name)
        key = environment_package("", self._root.key, owner, name).key
        asked = S3Request(operation, self._root.bucket, f"{key}/" if operation is Operation.list else f"{key}/0/a.whl")
        try:
            return required_check(asked, self._root, self._owners, namespace, once=True)
        except RequestNotAllowed as error:
            raise RestError(
                403, Reason.ACCESS_FORBIDDEN, f"You may not {operation} {owner}/{name}: {error}."
            ) from error

    async def require_owner(self, owner: str) -> None:
        """Check that the owner is in the platform's list of owners, or that the owner's packages belong to the
        namespace that currently has this name. If S3 has no record of their owner, records this namespace as the owner.
        Raises RestError.
        """
        try:
            await self._package_owners.require(owner)
        except RequestNotAllowed as error:
            raise RestError(403, Reason.ACCESS_FORBIDDEN, f"{str(error)[0].upper()}{str(error)[1:]}.") from error
        except (StoreError, CredentialsMissing) as error:
            log.warning("the owner of environment packages cannot be determined: %s", error)
            raise store_failure(error) from error
        except ApiError as error:
            raise from_own_api_error(error) from error

    def is_public(self, owner: str) -> bool:
        """Return whether all users of the platform may read the owner's packages."""
        return owner not in self._owners

    async def versions(self, tenant: str, owner: str, name: str) -> list[StoredVersion]:
        """Return the versions of a package in any order."""
        _require_names(owner, name)
        return await self._run(tenant, self._versions, self._folder(owner, name))

    async def names(self, tenant: str, owner: str) -> list[str]:
        """Return the names of an owner's packages."""
        _require_names(owner, "any")
        folders = await self._run(tenant, self._store.list_folders, self._folder(owner))
        return [name for name in folders if NAME.fullmatch(name)]

    async def similar(self, tenant: str, owner: str, name: str) -> str:
        """Return a sentence that lists packages with similar names, to append to a message about a missing package, or
        an empty string if there are none.
        """
        similar = similar_packages(name, await self.names(tenant, owner))
        return f". Similar packages: {', '.join(f'{owner}/{each}' for each in similar)}" if similar else ""

    async def read_wheel(
        self, tenant: str, owner: str, name: str, version: str, file: str, read: Callable[[bytes], T]
    ) -> T:
        """Return the result of `read`, called in a thread with the content of a wheel of at most MAX_WHEEL bytes."""
        uri = self._file(owner, name, version, file)

        def call() -> T:
            data = self._store.get_range(uri, 0, MAX_WHEEL + 1)
            if len(data) > MAX_WHEEL:
                raise too_large(file)
            return read(data)

        return await self._run(tenant, call)

    async def write_wheel(self, tenant: str, owner: str, name: str, version: str, file: str, data: bytes) -> None:
        """Write a wheel of a new version."""
        uri = self._file(owner, name, version, file)
        await self.require_owner(owner)
        await self._run(tenant, lambda: self._store.put_bytes(uri, data, replace=False))

    def close(self) -> None:
        """Stop the threads without waiting for S3."""
        self._files.close()

    async def _run(self, tenant: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        def work() -> T:
            try:
                return call(*args, **kwargs)
            except AlreadyExists:
                detail = "This version already contains the file, and versions are immutable. Increase the version."
                raise RestError(409, Reason.NAME_TAKEN, detail) from None
            except NotFound:
                raise not_found("The file of the package") from None

        return await self._files.run(tenant, f"environment packages, for {tenant},", work)

    def _versions(self, folder: S3Uri) -> list[StoredVersion]:
        files: dict[str, dict[str, tuple[int, datetime]]] = {}
        for at, stored in enumerate(self._store.walk(folder)):
            if at >= MAX_OBJECTS:
                break
            version, slash, file = stored.key.removeprefix(f"{folder.key}/").partition("/")
            if slash and VERSION.fullmatch(version) and FILE.fullmatch(file):
                files.setdefault(version, {})[file] = (stored.size, stored.modified)
        return [
            StoredVersion(
                version,
                tuple(sorted(found)),
                sum(size for size, _ in found.values()),
                max(modified for _, modified in found.values()),
            )
            for version, found in files.items()
        ]

    def _folder(self, owner: str, name: str = "") -> S3Uri:
        parts = [part for part in (self._root.key, ENVIRONMENTS_FOLDER, owner, package_name(name)) if part]
        return S3Uri(self._root.bucket, "/".join(parts))

    def _file(self, owner: str, name: str, version: str, file: str) -> S3Uri:
        _require_names(owner, name)
        if not VERSION.fullmatch(version) or not FILE.fullmatch(file):
            raise invalid("A package needs a wheel (.whl), and a version that follows PEP 440.", status=422)
        return self._folder(owner, name) / version / file


def too_large(file: str) -> RestError:
    """Return the error for a wheel that exceeds MAX_WHEEL."""
    detail = f"{file} is larger than {MAX_WHEEL} bytes. Push it with rlrun env push, or read it with rlrun env install."
    return RestError(413, Reason.BODY_TOO_LARGE, detail)


def _require_names(owner: str, name: str) -> None:
    if not NAME.fullmatch(owner) or not NAME.fullmatch(name):
        raise not_found(f"Environment {owner[:100]}/{name[:100]}")


PACKAGE = re.compile(ENVIRONMENT_ID)


def environment_id(owner: str, name: str) -> str:
    """Return the id of an environment, which is the same for all spellings of its name."""
    return base64.urlsafe_b64encode(f"{owner}/{package_name(name)}".encode()).decode().rstrip("=")


def read_environment_id(text: str) -> tuple[str, str]:
    """Parse an id into owner and normalized name. Raises RestError."""
    try:
        decoded = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True).decode()
    except (binascii.Error, ValueError):
        raise not_found(f"Environment {text[:200]}") from None
    owner, _, name = decoded.partition("/")
    if not PACKAGE.fullmatch(decoded):
        raise not_found(f"Environment {text[:200]}")
    return owner, package_name(name)
