"""S3 client for users who have no S3 credentials: rlrun-server signs their requests (`protocol.user_storage`)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from typing_extensions import override

from rlrun.protocol.storage_access import RequestToSign, SignedHeaders
from rlrun.protocol.user_storage import LOCATION_PATH, TOKEN_HEADER, USER_SIGN_PATH, StorageLocation, UserSignRequest
from rlrun.storage.errors import StorageServerUnavailable
from rlrun.storage.remote_signer import RequestSigner
from rlrun.storage.store import Store

__all__ = ["TOKEN_HEADER", "Send", "UserSigner", "open_user_store", "read_location"]

Send = Callable[[str, str, Mapping[str, Any] | None], Any]
"""Function that sends a request to rlrun-server as a user (method, path, body) and returns the JSON response.
Thread-safe. Raises StoreError: AccessDenied if a right is missing, StorageServerUnavailable if a retry may succeed.
"""


class UserSigner(RequestSigner):
    """Signer for a user's requests."""

    def __init__(self, send: Send, region: str, namespace: str) -> None:
        super().__init__(region)
        self._send = send
        self._namespace = namespace

    @override
    def close(self) -> None:
        pass  # the connections belong to `send`

    @override
    def sign_ahead(self, requests: Sequence[RequestToSign]) -> None:
        pass  # users transfer few files, so a batch of signatures would save little

    @override
    def _ask(self, asked: RequestToSign) -> SignedHeaders:
        body = UserSignRequest(**asked.model_dump(), namespace=self._namespace)
        try:
            return SignedHeaders.model_validate(self._send("POST", USER_SIGN_PATH, body.to_json_dict()))
        except ValidationError as error:
            raise StorageServerUnavailable("rlrun-server returned no signed headers; its version may differ") from error


def read_location(send: Send) -> StorageLocation:
    """Return the location of the platform's files. Raises StoreError."""
    try:
        return StorageLocation.model_validate(send("GET", LOCATION_PATH, None))
    except ValidationError as error:
        raise StorageServerUnavailable("rlrun-server returned no storage location; its version may differ") from error


def open_user_store(send: Send, location: StorageLocation, namespace: str) -> Store:
    """Return the S3 client for a user who works in this namespace. Raises StoreError."""
    return Store(
        location,
        signer=UserSigner(send, location.region, namespace),
        use_environment=False,
    )
