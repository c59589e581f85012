"""Requests to rlrun-server, each with the credential of the caller."""

from typing import TypeVar

from pydantic import BaseModel, ConfigDict, Field
from rlrun.api.base.names import Text
from rlrun.protocol.client_run import (
    CLIENT_MODEL_PATH,
    CLIENT_SAVE_PATH,
    CLIENT_SESSIONS_PATH,
    ClientModel,
    ClientSessionPlace,
    ModelId,
    NewClientModel,
    NewClientSession,
    SavedStateTtl,
    SavedStateUri,
)
from rlrun.service.client import HttpClient
from rlrun.service.errors import RequestError

from rlrun_tinker.callers import Callers, CredentialHolder
from rlrun_tinker.errors import TinkerError, from_server

MODELS_PATH = "/rlrun/v1/models"
IDENTITY_PATH = "/rlrun/v1/whoami"
MAX_NOTHING = 64 * 1024
"""Maximum size in bytes of a response whose content is ignored."""

M = TypeVar("M", bound=BaseModel)


class BaseModelSummary(BaseModel):
    """Fields of a base model in rlrun-server's list that this program uses."""

    model_config = ConfigDict(extra="ignore")

    id: Text
    seqLen: int | None = None  # as on the wire
    shared: bool = False


class BaseModels(BaseModel):
    """rlrun-server's list of base models."""

    model_config = ConfigDict(extra="ignore")

    items: list[BaseModelSummary] = Field(max_length=10_000)


class RunServer:
    """Client for rlrun-server. All methods raise TinkerError."""

    def __init__(self, url: str, http: HttpClient, callers: Callers) -> None:
        self._url = url
        self._http = http
        self._callers = callers

    async def new_session(self, caller: CredentialHolder, namespace: str | None) -> ClientSessionPlace:
        """Return the namespace of a new session."""
        body = NewClientSession(namespace=namespace)
        return await self._call(caller, "POST", CLIENT_SESSIONS_PATH, ClientSessionPlace, body)

    async def create(self, caller: CredentialHolder, model: ModelId, body: NewClientModel) -> ClientModel:
        """Create a model. Repeating the request does not create another model."""
        return await self._call(caller, "PUT", _path(model), ClientModel, body)

    async def read(self, caller: CredentialHolder, model: ModelId) -> ClientModel:
        """Return a model with its saved states, but without a token."""
        return await self._call(caller, "GET", _path(model), ClientModel)

    async def open(self, caller: CredentialHolder, model: ModelId) -> ClientModel:
        """Return a model with a token. Resumes a run that was suspended because its client was silent."""
        return await self._call(caller, "POST", f"{_path(model)}/open", ClientModel)

    async def delete(self, caller: CredentialHolder, state: SavedStateUri) -> None:
        """Delete a saved state."""
        await self._send(caller, "DELETE", _state_path(state))

    async def set_ttl(self, caller: CredentialHolder, state: SavedStateUri, ttl: SavedStateTtl) -> None:
        """Change the expiry of a saved state."""
        await self._send(caller, "PUT", f"{_state_path(state)}/ttl", ttl)

    async def check(self, caller: CredentialHolder) -> None:
        """Check that the credential is valid."""
        await self._send(caller, "GET", IDENTITY_PATH)

    async def base_models(self, caller: CredentialHolder) -> BaseModels:
        """Return the base models of the platform."""
        return await self._call(caller, "GET", MODELS_PATH, BaseModels)

    async def _call(
        self, caller: CredentialHolder, method: str, path: str, model: type[M], body: BaseModel | None = None
    ) -> M:
        content = None if body is None else body.model_dump(mode="json", by_alias=True, exclude_none=True)
        try:
            found = await self._http.call(method, self._url + path, model, content, caller.headers)
        except RequestError as error:
            raise self._refusal(caller, error) from None
        self._callers.accept(caller)
        return found

    async def _send(self, caller: CredentialHolder, method: str, path: str, body: BaseModel | None = None) -> None:
        content = None if body is None else body.model_dump(mode="json", by_alias=True)
        try:
            await self._http.fetch(method, self._url + path, MAX_NOTHING, content, caller.headers)
        except RequestError as error:
            raise self._refusal(caller, error) from None
        self._callers.accept(caller)

    def _refusal(self, caller: CredentialHolder, error: RequestError) -> TinkerError:
        if error.status == 401:
            self._callers.refuse(caller)
        return from_server(error)


def _path(model: ModelId) -> str:
    return CLIENT_MODEL_PATH.format(namespace=model.namespace, run=model.run)


def _state_path(state: SavedStateUri) -> str:
    place = {"namespace": state.model.namespace, "run": state.model.run, "kind": state.kind, "name": state.name}
    return CLIENT_SAVE_PATH.format(**place)
