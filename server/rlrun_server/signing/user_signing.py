"""Handles a user's request for a signature. Checks limits, token and permission, cheapest check first."""

import logging
from collections.abc import Awaitable, Callable, Sequence

from rlrun.constants import Reason
from rlrun.kube.errors import ApiError
from rlrun.protocol.storage_access import SignedHeaders
from rlrun.protocol.user_storage import StorageLocation, UserSignRequest
from rlrun.service.errors import ProblemError
from rlrun.storage.errors import StoreError, Unreachable
from rlrun.storage.layout import S3Uri

from rlrun_server.authentication.identification import Identification, not_reviewed, too_many
from rlrun_server.authentication.users import User, Users
from rlrun_server.runtime.metrics import SIGNATURES
from rlrun_server.runtime.rate_limit import Rate, RateLimiter
from rlrun_server.runtime.settings import ServerSettings
from rlrun_server.signing.credentials import CredentialsMissing
from rlrun_server.signing.package_owners import PackageOwners
from rlrun_server.signing.s3_request import RequestNotAllowed, S3Request, read_request
from rlrun_server.signing.signer import S3Signer
from rlrun_server.signing.store_safety import StoreSafety
from rlrun_server.signing.user_permissions import required_check, written_owner

log = logging.getLogger(__name__)

BURST_SECONDS = 4.0
USER = "user"
"""Value of the metrics' label `role` for signatures that users request."""


class UserSigning:
    """Handler of users' requests for signatures and for the S3 location. Every rejection is a ProblemError."""

    def __init__(
        self,
        settings: ServerSettings,
        location: StorageLocation,
        signers: Sequence[S3Signer],
        identification: Identification,
        users: Users,
        clock: Callable[[], float],
        safety: StoreSafety,
        package_owners: PackageOwners,
    ) -> None:
        """`signers` has one signer for each endpoint to which users may send requests."""
        self._safety = safety
        self._package_owners = package_owners
        self._location = location
        self._root = S3Uri(location.bucket, location.prefix.strip("/"))
        self._owners = settings.environment_owners
        self._signers = signers
        self._identification = identification
        self._users = users
        self._clock = clock
        per_second = settings.user_signatures_per_second
        self._signatures = RateLimiter(Rate(per_second, BURST_SECONDS * per_second))

    async def location(self, token: str, client: str) -> StorageLocation:
        """Return the S3 location of the platform's files, for any user. `client` is the connection's address. Raises
        ProblemError.
        """
        await self._identify(token, client)
        return self._location.model_copy(update={"problem": self._safety.shortcoming})

    async def sign(self, token: str, client: str, read: Callable[[], Awaitable[UserSignRequest]]) -> SignedHeaders:
        """Return the signed headers for the request. `read` returns the request, and is called only after the user is
        identified. Raises ProblemError, and exceptions of `read`.
        """
        outcome = "error"
        try:
            headers = await self._sign(token, client, read)
            outcome = "signed"
            return headers
        except ProblemError as error:
            outcome = str(error.status)
            raise
        finally:
            SIGNATURES.labels(USER, outcome).inc()

    async def _sign(self, token: str, client: str, read: Callable[[], Awaitable[UserSignRequest]]) -> SignedHeaders:
        user = await self._identify(token, client)
        if not self._signatures.allow(user.limited_as, self._clock()):
            raise too_many(f"User {user.limited_as}")
        asked = await read()
        try:
            signer, request = self._read(asked)
            namespace = asked.namespace or user.namespace
            check = required_check(request, self._root, self._owners, namespace, once=_is_once(asked))
            if check is not None and not await self._users.may(user, check):
                # Use the same response for a namespace that does not exist.
                raise RequestNotAllowed(f"user {user.name} may not {check}")
            owner = written_owner(request, self._root)
            if owner is not None:
                await self._package_owners.require(owner)
            await signer.renew()
            return self._safety.sign(signer, asked)
        except RequestNotAllowed as error:
            log.info("user %s: %s", user.name, error)
            message = f"{str(error)[0].upper()}{str(error)[1:]}."
            raise ProblemError.of(403, Reason.STORAGE_ACCESS_DENIED, message) from error
        except CredentialsMissing as error:
            raise ProblemError.of(503, Reason.S3_CREDENTIALS_MISSING, str(error)) from error
        except Unreachable as error:
            raise ProblemError(503, error.problem) from error
        except StoreError as error:
            # Not 5xx, after which clients retry: a retry does not help with wrong settings of the platform.
            raise ProblemError.of(403, error.reason, f"{error}. Ask the platform team.") from error
        except ApiError as error:
            raise not_reviewed(error) from error

    def _read(self, asked: UserSignRequest) -> tuple[S3Signer, S3Request]:
        path = asked.url.partition("?")[0]
        for signer in self._signers:
            base = signer.base_url(self._root.bucket)
            if path == base or path.startswith(f"{base}/"):
                return signer, read_request(asked.method, asked.url, asked.headers, self._root.bucket, base)
        raise RequestNotAllowed("the URL is not in the platform's bucket at its S3 endpoint")

    async def _identify(self, token: str, client: str) -> User:
        if not self._root.bucket:
            message = "rlrun-server serves no users, because RLRUN_SERVER_BUCKET is not set. Ask the platform team."
            raise ProblemError.of(503, Reason.STORAGE_SERVER_UNAVAILABLE, message)
        return await self._identification.identify(token, client)


def _is_once(asked: UserSignRequest) -> bool:
    """Return whether the request is a PUT of an object that S3 rejects if the object exists. A request of a multipart
    upload never counts as one.
    """
    condition = next((value for name, value in asked.headers.items() if name.lower() == "if-none-match"), "")
    return asked.method == "PUT" and condition == "*" and "uploadId" not in asked.url.partition("?")[2]
