"""Client for a namespace's API keys, which rlrun-server manages."""

from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import ValidationError
from rlrun.api.base.schema import Schema
from rlrun.protocol.api_keys import KEY_DELETION_PATH, KEYS_PATH, ApiKeyInfo, ApiKeyList, CreatedApiKey, NewApiKey

if TYPE_CHECKING:
    from rlrun.storage.user_signer import Send

Answer = TypeVar("Answer", bound=Schema)


class ApiKeys:
    """API keys of one namespace. Methods raise CliError and StoreError."""

    def __init__(self, send: "Send", namespace: str) -> None:
        self._send = send
        self._namespace = namespace

    def create(self, asked: NewApiKey) -> CreatedApiKey:
        """Create a key. Only this response contains its secret."""
        return _read(CreatedApiKey, self._send("POST", self._path(KEYS_PATH), asked.to_json_dict()))

    def list(self) -> "list[ApiKeyInfo]":
        """Return the keys, oldest first, including expired keys."""
        return _read(ApiKeyList, self._send("GET", self._path(KEYS_PATH), None)).keys

    def delete(self, key_id: str) -> ApiKeyInfo:
        """Delete a key and return its ApiKeyInfo. rlrun-server rejects the key within seconds. Raises NotFound."""
        return _read(ApiKeyInfo, self._send("POST", self._path(KEY_DELETION_PATH, id=key_id), None))

    def _path(self, pattern: str, **parts: str) -> str:
        return pattern.format(namespace=self._namespace, **parts)


def _read(schema: type[Answer], answer: Any) -> Answer:
    from rlrun.storage.errors import StorageServerUnavailable

    try:
        return schema.model_validate(answer)
    except ValidationError as error:
        raise StorageServerUnavailable("rlrun-server returned no API keys: check its version") from error
