"""Messages about runs with `driver: Client`, whose training loop is a program of the user: ids, tokens, states.

A program that uses the Tinker SDK sends its requests to rlrun-tinker. rlrun-tinker is stateless: the ids contain all
that it needs to find an object, so any replica can handle any request.

    session       ts-0123456789ab.NAMESPACE
    model         SESSION:train:NUMBER          the RLRun ts-0123456789ab-NUMBER in NAMESPACE
    saved state   tinker://MODEL/weights/NAME   a checkpoint of the RLRun
                  tinker://MODEL/sampler_weights/NAME   an adapter of the RLRun
    sampler       MODEL:p12-1a2b3c4d            policy version saved by call 12 of the model, with its digest
                  MODEL:a12-1a2b3c4d            adapter that call 12 saved under a name
                  MODEL:base                    base model

rlrun-tinker calls rlrun-server with the user's credential:

    POST   CLIENT_SESSIONS_PATH        NewClientSession  -> ClientSessionPlace   checks that the user may create runs
    PUT    CLIENT_MODEL_PATH           NewClientModel    -> ClientModel       creates the RLRun, once
    GET    CLIENT_MODEL_PATH                             -> ClientModel       without a token
    POST   CLIENT_MODEL_PATH/open                        -> ClientModel       with a token; resumes a silent run
    DELETE CLIENT_SAVE_PATH                              -> 204               deletes a saved state
    PUT    CLIENT_SAVE_PATH/ttl        SavedStateTtl     -> 204               changes the time of its deletion

Errors are `Problem`s. rlrun-tinker calls the trainer of the run's pool with the run's token (see `client_command`). The
trainer opens the run's session by itself, as specified in its `TrainerOrder`, and lists the saved states in the S3
object `RunLayout.saved_states`.
"""

import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from pydantic import Field

from rlrun.api.base.names import Text
from rlrun.api.base.phases import Phase
from rlrun.api.base.received import InputLimits
from rlrun.api.base.schema import Schema
from rlrun.protocol.problem import Problem

CLIENT_SESSIONS_PATH = "/rlrun/v1/client-sessions"
CLIENT_MODEL_PATH = "/rlrun/v1/namespaces/{namespace}/client-models/{run}"
CLIENT_SAVE_PATH = f"{CLIENT_MODEL_PATH}/{{kind}}/{{name}}"
MAX_TTL = 10 * 366 * 86400
"""Maximum time in seconds until a saved state expires."""
MAX_RANK = 4096
MAX_METADATA_BYTES = 16_384
MAX_METADATA_ENTRIES = 256
MAX_SAVES = 10_000
"""Maximum number of saved states of a run."""
SILENT_SECONDS = 900.0
"""Seconds without a request from the client after which the operator suspends a run (`ClientSilent`)."""
SAVE_NAME = r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}"
"""Pattern of the name of a saved state."""
_SESSION = re.compile(r"(?P<group>ts-[0-9a-f]{12})\.(?P<namespace>[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)")
_MODEL = re.compile(rf"(?P<session>{_SESSION.pattern}):train:(?P<number>0|[1-9][0-9]{{0,5}})")
_STATE = re.compile(rf"tinker://(?P<model>{_MODEL.pattern})/(?P<kind>weights|sampler_weights)/(?P<name>{SAVE_NAME})")


_SAMPLER = re.compile(
    rf"(?P<model>{_MODEL.pattern}):(base|(?P<letter>[pa])(?P<step>[1-9][0-9]{{0,9}})-(?P<digest>[0-9a-f]{{8}}))"
)


class SaveKind(StrEnum):
    """Kind of a saved state, as in its URI."""

    weights = "weights"
    """Checkpoint, from which training continues."""
    sampler_weights = "sampler_weights"
    """Adapter, from which engines sample."""


@dataclass(frozen=True)
class SessionId:
    """Session of a client's program. The runs of the session have the label CLIENT_SESSION_LABEL with the value
    `group`.
    """

    group: str
    namespace: str

    @classmethod
    def parse(cls, text: str) -> "SessionId":
        """Parse `ts-0123456789ab.NAMESPACE`. Raises ValueError."""
        match = _SESSION.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:100]!r} is not a session id of this server")
        return cls(match["group"], match["namespace"])

    def __str__(self) -> str:
        return f"{self.group}.{self.namespace}"


@dataclass(frozen=True)
class ModelId:
    """Model that a client's program trains: one RLRun."""

    session: SessionId
    number: int

    @classmethod
    def parse(cls, text: str) -> "ModelId":
        """Parse `SESSION:train:NUMBER`. Raises ValueError."""
        match = _MODEL.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:100]!r} is not a model id of this server")
        return cls(SessionId.parse(match["session"]), int(match["number"]))

    @classmethod
    def of_run(cls, namespace: str, run: str) -> "ModelId":
        """Return the model of an RLRun. Raises ValueError."""
        group, _, number = run.rpartition("-")
        return cls.parse(f"{group}.{namespace}:train:{number}")

    @property
    def namespace(self) -> str:
        """Namespace of the RLRun."""
        return self.session.namespace

    @property
    def run(self) -> str:
        """Name of the RLRun."""
        return f"{self.session.group}-{self.number}"

    def __str__(self) -> str:
        return f"{self.session}:train:{self.number}"


@dataclass(frozen=True)
class SavedStateUri:
    """URI of a saved state."""

    model: ModelId
    kind: SaveKind
    name: str

    @classmethod
    def parse(cls, text: str) -> "SavedStateUri":
        """Parse `tinker://MODEL/KIND/NAME`. Raises ValueError."""
        match = _STATE.fullmatch(text)
        if match is None:
            raise ValueError(
                f"{text[:200]!r} is not the path of a saved state: use tinker://MODEL/weights/NAME or "
                "tinker://MODEL/sampler_weights/NAME"
            )
        return cls(ModelId.parse(match["model"]), SaveKind(match["kind"]), match["name"])

    def __str__(self) -> str:
        return f"tinker://{self.model}/{self.kind}/{self.name}"


@dataclass(frozen=True)
class SamplerId:
    """Weights that engines sample from: a policy version or a named adapter of a model, or its base model."""

    model: ModelId
    step: int | None = None
    """Number of the call that saved the weights, or None for the base model."""
    digest: str = ""
    """First 8 hexadecimal digits of the weights' digest. Empty for the base model."""
    is_named: bool = False
    """True for an adapter that was saved under a name."""

    @classmethod
    def parse(cls, text: str) -> "SamplerId":
        """Parse the id of a sampler, such as `MODEL:p12-1a2b3c4d`. Raises ValueError."""
        match = _SAMPLER.fullmatch(text)
        if match is None:
            raise ValueError(f"{text[:200]!r} is not a sampler id of this server")
        model = ModelId.parse(match["model"])
        if match["step"] is None:
            return cls(model)
        return cls(model, int(match["step"]), match["digest"], match["letter"] == "a")

    def __str__(self) -> str:
        if self.step is None:
            return f"{self.model}:base"
        return f"{self.model}:{'a' if self.is_named else 'p'}{self.step}-{self.digest}"


def client_token(platform_key: bytes, uid: str) -> str:
    """Return the token, in hexadecimal, of a run with `driver: Client`. `platform_key` is the key that signs the grants
    sent to rlrun-server. The operator and rlrun-server both have this key, so the token need not be stored.
    """
    # The slash separates this use of the platform key from signed grants, which are base64url text.
    return hmac.new(platform_key, f"client-run/{uid}".encode(), hashlib.sha256).hexdigest()


class NewClientSession(Schema):
    """Request to open a session."""

    namespace: Text | None = None
    """Namespace of the session's runs, `project_id` in the SDK. Required unless the credential is an API key, which
    belongs to a namespace.
    """


class ClientSessionPlace(Schema):
    """Response to NewClientSession: the namespace of the new session."""

    namespace: Text


class LoadedState(Schema):
    """Saved state from which a model starts."""

    path: Text
    """SavedStateUri of kind `weights`."""
    optimizer: bool
    """If true, the optimizer's moments are restored. If false, they start at zero."""


class NewClientModel(Schema):
    """Request to create a model. Repeating the request changes nothing."""

    base_model: Text | None = None
    """Id of the RLModel. May be omitted if `load` is set."""
    rank: int | None = Field(default=None, ge=1, le=MAX_RANK)
    """Rank of the LoRA adapter. Required unless `load` is set. None uses the rank of the state in `load`."""
    seed: int | None = Field(default=None, ge=0, lt=2**31)
    load: LoadedState | None = None
    user_metadata: dict[str, Any] = Field(default_factory=dict, max_length=MAX_METADATA_ENTRIES)


class ClientModel(Schema):
    """State of a model."""

    wire_limits = InputLimits(size=4 * 1024**2, values=10 * MAX_SAVES)

    namespace: Text
    run: Text
    uid: Text
    base_model: Text
    rank: int
    created_at: datetime
    user_metadata: dict[str, Any] = Field(default_factory=dict, max_length=MAX_METADATA_ENTRIES)
    phase: Phase
    has_ended: bool = False
    """True if the run is finished, stopped or being deleted. Such a run is never trained again."""
    waiting: Problem | None = None
    """Reason why the session is not open, such as runs ahead in the queue."""
    trainer_url: Text | None = None
    """Base URL of the trainer, or None while the run has no pool."""
    inference_host: Text | None = None
    """Host name that resolves to the addresses of the pool's engine pods, including pods that are not ready. None while
    the run has no pool.
    """
    run_uri: Text | None = None
    """Folder of the run in S3. Only in responses to `open`, and None if the run has ended."""
    token: Text | None = None
    """Token for the trainer. Only in responses to `open`, and None if the run has ended."""
    saved: "SavedStates | None" = None
    """Saved states. Only in responses to GET."""


class SavedState(Schema):
    """Named artifact of a run with `driver: Client`."""

    step: int = Field(ge=0)
    """Number of the call that saved the state. This is also the step of the RLCheckpoint or RLAdapter."""
    time: datetime
    expires_at: datetime | None = None
    """Time after which the operator deletes the artifact. None keeps the artifact."""
    digest: Text | None = None
    """SHA-256 of an adapter's weights in hexadecimal (`PolicyRef.digest`). None for checkpoints."""


class SavedStateTtl(Schema):
    """Request to change the time after which a saved state is deleted."""

    ttl_seconds: int | None = Field(default=None, ge=1, le=MAX_TTL)
    """Seconds from now until the state is deleted. None keeps the state."""


class SavedStates(Schema):
    """Saved states of a run by name. The trainer writes them to `RunLayout.saved_states`."""

    wire_limits = InputLimits(size=4 * 1024**2, values=10 * MAX_SAVES)

    weights: dict[str, SavedState] = Field(default_factory=dict, max_length=MAX_SAVES)
    sampler_weights: dict[str, SavedState] = Field(default_factory=dict, max_length=MAX_SAVES)

    def of(self, kind: SaveKind) -> dict[str, SavedState]:
        """Return the states of one kind."""
        return self.weights if kind is SaveKind.weights else self.sampler_weights
