"""JSON bodies of the Tinker API. Unknown fields are ignored, because newer SDKs may send them."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from rlrun.api.base.names import Text
from rlrun.api.base.received import BODY, InputInvalid, to_input_invalid
from rlrun.protocol.client_command import OptimStep, SaveState
from rlrun.protocol.client_run import (
    MAX_METADATA_BYTES,
    MAX_METADATA_ENTRIES,
    LoadedState,
    ModelId,
    NewClientModel,
    SavedStateTtl,
    SavedStateUri,
    SaveKind,
    SessionId,
)

from rlrun_tinker.errors import TinkerError

OPTIMIZER = "adamw"
Seq = Annotated[int, Field(ge=1, lt=2**31)]
ModelNumber = Annotated[int, Field(ge=0, lt=1_000_000)]

M = TypeVar("M", bound=BaseModel)
T = TypeVar("T")
Metadata = Annotated[dict[str, Any], Field(max_length=MAX_METADATA_ENTRIES)]


class TinkerRequest(BaseModel):
    """Body of a request, with the SDK's field names."""

    model_config = ConfigDict(extra="ignore", protected_namespaces=())


class CreateSession(TinkerRequest):
    """Body of create_session."""

    project_id: Text | None = None


class OfSession(TinkerRequest):
    """Body with the id of a session."""

    session_id: Text

    @property
    def session(self) -> SessionId:
        """Session of the request. Raises TinkerError."""
        return parse_id(SessionId.parse, self.session_id)


class OfModel(TinkerRequest):
    """Body with the id of a model."""

    model_id: Text

    @property
    def model(self) -> ModelId:
        """Model of the request. Raises TinkerError."""
        return parse_id(ModelId.parse, self.model_id)


class NumberedRequest(OfModel):
    """Body of a request that a model's trainer executes. The trainer executes the requests of a model in the order of
    `seq_id`.
    """

    seq_id: Seq


class OptimizerConfig(TinkerRequest):
    """Type of an optimizer."""

    type: Text = OPTIMIZER


class LoraConfig(TinkerRequest):
    """Rank of an adapter, and the layers that it adapts."""

    rank: int
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True


class CreateModel(OfSession):
    """Body of create_model."""

    model_seq_id: ModelNumber
    base_model: Text
    user_metadata: Metadata | None = None
    lora_config: LoraConfig | None = None
    optimizer_config: OptimizerConfig = Field(default_factory=OptimizerConfig)

    @property
    def model(self) -> ModelId:
        """Model to create. Raises TinkerError."""
        return ModelId(self.session, self.model_seq_id)

    def to_new_model(self) -> NewClientModel:
        """Convert the body to the request for rlrun-server. Raises InputInvalid."""
        lora = self.lora_config
        if lora is None:
            raise InputInvalid(
                "`lora_config`", "is missing. Use create_lora_training_client: this API trains LoRA only."
            )
        if not lora.train_mlp or not lora.train_attn:
            raise InputInvalid(
                "`train_mlp` and `train_attn`", "must be true: the RLModel decides which layers are trained."
            )
        _require_adamw(self.optimizer_config)
        return build(
            NewClientModel,
            "`lora_config`",
            base_model=self.base_model,
            rank=lora.rank,
            seed=lora.seed,
            user_metadata=_metadata(self.user_metadata),
        )


class LoadWeights(TinkerRequest):
    """Body of load_weights."""

    session_id: Text | None = None
    model_seq_id: ModelNumber | None = None
    model_id: Text | None = None
    """Id of an existing model. TrainingClient.load_state sends this field and `seq_id` instead of a session."""
    seq_id: Seq | None = None
    path: Text
    optimizer: bool
    base_model: Text | None = None
    optimizer_config: OptimizerConfig | None = None
    user_metadata: Metadata | None = None
    weights_access_token: Text | None = None

    @property
    def model(self) -> ModelId:
        """Model to create. Raises TinkerError, InputInvalid."""
        if self.session_id is None or self.model_seq_id is None:
            message = (
                "cannot be loaded into an existing model. Create a client from the saved state: "
                "service_client.create_training_client_from_state(path), or "
                "create_training_client_from_state_with_optimizer(path), with tinker 0.38 or later."
            )
            raise InputInvalid("`path`", message)
        return ModelId(parse_id(SessionId.parse, self.session_id), self.model_seq_id)

    def to_new_model(self) -> NewClientModel:
        """Convert the body to the request for rlrun-server. Raises TinkerError, InputInvalid."""
        if self.weights_access_token is not None:
            message = "is not supported: a saved state can be loaded by users with access to its namespace."
            raise InputInvalid("`weights_access_token`", message)
        if self.optimizer_config is not None:
            _require_adamw(self.optimizer_config)
        if parse_id(SavedStateUri.parse, self.path).kind is not SaveKind.weights:
            message = "is for sampling only. Load a state saved by save_state, tinker://MODEL/weights/NAME."
            raise InputInvalid("`path`", message)
        load = LoadedState(path=self.path, optimizer=self.optimizer)
        metadata = _metadata(self.user_metadata)
        return build(NewClientModel, BODY, base_model=self.base_model, load=load, user_metadata=metadata)


class AdamParams(TinkerRequest):
    """Parameters of an AdamW step, with the SDK's defaults."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0


class OptimStepRequest(NumberedRequest):
    """Body of optim_step."""

    adam_params: AdamParams | None = None
    optimizer_params: OptimizerConfig | None = None

    def to_command(self) -> OptimStep:
        """Convert the body to the command for the trainer. Raises InputInvalid."""
        if self.adam_params is None:
            family = "" if self.optimizer_params is None else f", not {self.optimizer_params.type[:64]!r}"
            raise InputInvalid("`adam_params`", f"is missing. Call optim_step(tinker.AdamParams(...)){family}.")
        return build(OptimStep, "`adam_params`", **self.adam_params.model_dump())


class SaveWeights(NumberedRequest):
    """Body of save_weights and save_weights_for_sampler."""

    path: Text | None = None
    ttl_seconds: int | None = None
    overwrite: bool = False
    user_metadata: Metadata | None = None

    def to_command(self, kind: SaveKind) -> SaveState:
        """Convert the body to the command for the trainer. Raises InputInvalid."""
        return build(
            SaveState,
            BODY,
            saved_as=kind,
            # Weights for sampling without a name are a policy version.
            name=self.path or (f"{self.seq_id:06d}" if kind is SaveKind.weights else None),
            ttl_seconds=self.ttl_seconds,
            overwrite=self.overwrite,
            user_metadata=_metadata(self.user_metadata),
        )


class TtlRequest(TinkerRequest):
    """Body of a request to change the expiry of a checkpoint."""

    ttl_seconds: int | None
    """Seconds until the checkpoint expires. None means that it never expires."""

    def to_ttl(self) -> SavedStateTtl:
        """Convert the body to the request for rlrun-server. Raises InputInvalid."""
        return build(SavedStateTtl, BODY, ttl_seconds=self.ttl_seconds)


class RetrieveFuture(TinkerRequest):
    """Body of retrieve_future."""

    request_id: Annotated[str, Field(max_length=4096)]
    allow_metadata_only: bool = False


class WeightsInfo(TinkerRequest):
    """Body of weights_info."""

    tinker_path: Text


def parse_id(parse: Callable[[str], T], text: str) -> T:
    """Parse an id that a client sent. Raises TinkerError with status 404."""
    try:
        return parse(text)
    except ValueError as error:
        message = str(error)
    raise TinkerError(404, message)


def build(model: type[M], source: str, **values: Any) -> M:
    """Construct a message from values that a client sent. Raises InputInvalid."""
    try:
        return model(**values)
    except ValidationError as error:
        invalid = to_input_invalid(error, source)
    raise invalid


def _require_adamw(config: OptimizerConfig) -> None:
    if config.type != OPTIMIZER:
        message = f"{config.type[:64]!r} is not supported. Omit `optimizer`, or set it to AdamW."
        raise InputInvalid("`optimizer_config`", message)


def _metadata(given: dict[str, Any] | None) -> dict[str, Any]:
    metadata = given or {}
    if len(repr(metadata)) > MAX_METADATA_BYTES:
        raise InputInvalid("`user_metadata`", f"is larger than {MAX_METADATA_BYTES} bytes.")
    return metadata
