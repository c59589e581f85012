"""Access control for engines: a middleware in vLLM that requires a token on all paths except the open ones.

vLLM's image is not part of this project, so an init container copies the middleware to a volume on the engine's module
path.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from rlrun.api.base.kubernetes_types import EnvVar, EnvVarSource, SecretKeySelector
from rlrun.kube.objects import Obj
from rlrun.protocol.access import (
    OPEN_PATHS_VARIABLE,
    POOL_API_KEY_SECRET_VARIABLE,
    POOL_API_KEY_VARIABLE,
    TOKEN_VARIABLE,
    USER_API_KEY,
    USER_PATHS_VARIABLE,
)
from rlrun.protocol.engine_proof import POOL_SERVER_KEY_VARIABLE

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.base.pod_templates import container, resources_of

MIDDLEWARE = "rlrun_engine_access.middleware.EngineAccess"
ACCESS_DIR = "/engine-access"
VOLUME = "engine-access"
VOLUME_SIZE = "1Mi"
PROBE_PATHS = ("/health", "/metrics")
"""Paths for probes and Prometheus, which require no token."""
SHARED_PROBE_PATHS = ("/health",)
"""Paths of a shared pool's engine that require no token. The engine's metrics contain the policy names of all runs."""
USER_PATHS = ("/v1/models", "/v1/chat/completions", "/v1/completions", "/v1/responses")
"""Paths of a serving pool that users call with their key: the OpenAI API. All other paths are for the sidecar."""
MODULE_PATH = "PYTHONPATH"
ENGINE_KEY_VARIABLE = "VLLM_API_KEY"
"""Variable with vLLM's own API key, which requests below `/v1` need in addition to the token that the middleware
checks.
"""
ORDER_FILE_VARIABLE = "RLRUN_POOL_ORDER_FILE"
"""Variable with the path of the file that lists the runs of a shared pool (`rlrun.protocol.shared_pool`)."""
MAX_LORAS_VARIABLE = "RLRUN_MAX_LORAS"
"""Variable with the maximum number of adapters in one batch of a shared pool's engine."""
MAX_SEQUENCES_VARIABLE = "RLRUN_MAX_SEQUENCES"
"""Variable with the maximum number of requests in one batch of a shared pool's engine."""
MAX_BODY_VARIABLE = "RLRUN_MAX_BODY"
"""Variable with the maximum size in bytes of a request's body in a shared pool."""
OTHER_SERVER_VARIABLE = "VLLM_USE_RUST_FRONTEND"
"""Variable that selects vLLM's Rust frontend, which does not support middleware."""
RESERVED = frozenset(
    {
        TOKEN_VARIABLE,
        OPEN_PATHS_VARIABLE,
        POOL_API_KEY_VARIABLE,
        POOL_API_KEY_SECRET_VARIABLE,
        POOL_SERVER_KEY_VARIABLE,
        USER_PATHS_VARIABLE,
        ORDER_FILE_VARIABLE,
        MAX_LORAS_VARIABLE,
        MAX_SEQUENCES_VARIABLE,
        MAX_BODY_VARIABLE,
    }
)
"""Variables of the middleware, which an RLModel must not set."""


@dataclass(frozen=True)
class SharedEngine:
    """Limits of a shared pool's engine and the file that lists the pool's runs, for the middleware."""

    order_file: str
    """Path of the file that lists the pool's runs."""
    max_loras: int
    """Maximum number of adapters in one batch."""
    max_sequences: int
    """Maximum number of requests in one batch."""
    max_body: int
    """Maximum size in bytes of a request's body."""

    @property
    def variables(self) -> dict[str, str]:
        """Variables of the middleware."""
        return {
            ORDER_FILE_VARIABLE: self.order_file,
            MAX_LORAS_VARIABLE: str(self.max_loras),
            MAX_SEQUENCES_VARIABLE: str(self.max_sequences),
            MAX_BODY_VARIABLE: str(self.max_body),
        }


def installer(settings: OperatorSettings) -> Obj:
    """Return the init container that copies the access middleware into the pod."""
    return container(
        "engine-access",
        settings.images.orchestrator,
        command=["python", "-m", "rlrun_engine_access", ACCESS_DIR],
        mounts={VOLUME: ACCESS_DIR},
        resources=resources_of(settings.sidecar_resources),
    )


def access_volume() -> dict[str, Obj]:
    """Return the in-memory volume for the access middleware."""
    return {VOLUME: {"emptyDir": {"medium": "Memory", "sizeLimit": VOLUME_SIZE}}}


def run_engine_with_access(engine: Obj, secret: str) -> Obj:
    """Return a run's engine with the middleware, which requires the run's token. `secret` names the Secret with the
    token. If the Secret has none, all requests are accepted.
    """
    # Optional, because the Secret has no token if the operator has no token key.
    token = {"secretKeyRef": {"name": secret, "key": TOKEN_VARIABLE, "optional": True}}
    return _with_access(engine, {TOKEN_VARIABLE: token, ENGINE_KEY_VARIABLE: token})


def pool_engine_with_access(engine: Obj, secret: str, api_key_secret: str) -> Obj:
    """Return a serving pool's engine with the middleware. `secret` names the Secret with the pool's token and
    rlrun-server's key, `api_key_secret` the Secret with the key of the pool's users.
    """
    secrets = {
        TOKEN_VARIABLE: {"secretKeyRef": {"name": secret, "key": TOKEN_VARIABLE}},
        POOL_API_KEY_VARIABLE: {"secretKeyRef": {"name": api_key_secret, "key": USER_API_KEY}},
        POOL_SERVER_KEY_VARIABLE: {"secretKeyRef": {"name": secret, "key": POOL_SERVER_KEY_VARIABLE}},
    }
    users = {POOL_API_KEY_SECRET_VARIABLE: api_key_secret, USER_PATHS_VARIABLE: ",".join(USER_PATHS)}
    return _with_access(engine, secrets, users)


def shared_engine_with_access(engine: Obj, secret: str, shared: SharedEngine) -> Obj:
    """Return a shared pool's engine with the middleware. It accepts the pool's token in `secret` on all paths, and the
    tokens of the runs in `shared.order_file` on the paths for sampling and tokenizing.
    """
    # vLLM accepts a single key, but each run has its own token.
    engine = {**engine, "env": [entry for entry in engine["env"] if entry["name"] != ENGINE_KEY_VARIABLE]}
    token = {"secretKeyRef": {"name": secret, "key": TOKEN_VARIABLE}}
    return _with_access(engine, {TOKEN_VARIABLE: token}, shared.variables, SHARED_PROBE_PATHS)


def token_variable(secret: str) -> EnvVar:
    """Return the variable with the token in `secret`, for a pool's sidecar."""
    selector = SecretKeySelector(name=secret, key=TOKEN_VARIABLE)
    return EnvVar(name=TOKEN_VARIABLE, value_from=EnvVarSource(secret_key_ref=selector))


def _with_access(
    engine: Obj,
    secrets: Mapping[str, Obj],
    values: Mapping[str, str] = MappingProxyType({}),
    open_paths: Sequence[str] = PROBE_PATHS,
) -> Obj:
    """Add the middleware to the engine. Variables of the RLModel cannot remove it or change a token."""
    of_model = {entry["name"]: entry for entry in engine["env"]}
    module_path = [ACCESS_DIR, *filter(None, [of_model.get(MODULE_PATH, {}).get("value")])]
    own: list[Obj] = [
        *({"name": name, "valueFrom": secret} for name, secret in secrets.items()),
        *({"name": name, "value": value} for name, value in values.items()),
        {"name": OPEN_PATHS_VARIABLE, "value": ",".join(open_paths)},
        {"name": MODULE_PATH, "value": ":".join(module_path)},
        {"name": OTHER_SERVER_VARIABLE, "value": "0"},
    ]
    others = [entry for name, entry in of_model.items() if name not in RESERVED | {entry["name"] for entry in own}]
    mount = {"name": VOLUME, "mountPath": ACCESS_DIR, "readOnly": True}
    return {**engine, "env": [*others, *own], "volumeMounts": [*engine["volumeMounts"], mount]}
