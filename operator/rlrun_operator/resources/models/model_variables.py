"""Variables of an RLModel: which containers get them, and which contain a credential in clear text.

| variable | trainer or engine | fetcher of a model on the hub |
|---|---|---|
| for the Hugging Face hub (`HF_*`), with `value` | yes | yes |
| for the Hugging Face hub, with `valueFrom` | no | yes |
| any other | yes | no |

Trainer and engine load the downloaded files and are offline, so they need no token for the hub.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from rlrun.api.base.kubernetes_types import EnvVar, SecretKeySelector
from rlrun.api.model import RLModelSpec

Variables = Mapping[str, Sequence[EnvVar]]
"""Variables of an RLModel by their field, such as `trainer.env`."""

HUB_SCHEME = "hf://"
HUB_PREFIX = "HF_"
NOT_FOR_FETCHER = ("HF_HUB_OFFLINE",)
"""Variables with HUB_PREFIX that would prevent a download."""

CREDENTIAL_NAMES = ("*TOKEN", "*TOKEN_*", "*KEY", "*KEY_*", "*SECRET*", "*PASSWORD*")
"""Patterns of variables that contain credentials. `*TOKEN*` would match TOKENIZERS_PARALLELISM and VLLM_MAX_TOKENS."""
HARMLESS_NAMES = ("*_FILE", "*_PATH", "*_DIR", "*_ID")
"""Patterns of variables that only contain the location or the owner of a credential."""


@dataclass(frozen=True)
class SecretVariable:
    """Variable that a container reads from a Secret."""

    field: str
    """Field of the RLModel that contains the variable, such as `trainer.env`."""
    name: str
    ref: SecretKeySelector


def run_variables(model: RLModelSpec) -> Variables:
    """Return the variables for the pods of a run."""
    return {"trainer.env": model.trainer.env, "inference.env": model.inference.env}


def pool_variables(model: RLModelSpec, *, with_trainer: bool = False) -> Variables:
    """Return the variables for the pods of a pool, and for the Job that fills its weights cache. `with_trainer` is True
    for a shared pool with a trainer.
    """
    if with_trainer:
        return run_variables(model)
    engine: Variables = {"inference.env": model.inference.env}
    if model.cache is None:
        return engine
    return {**engine, "trainer.env": fetcher_variables(model.source, model.trainer.env)}


def fetcher_variables(source: str, env: Sequence[EnvVar]) -> list[EnvVar]:
    """Return the variables of the container that fetches the model from `source`."""
    return [v for v in env if _is_for_fetcher(v)] if source.startswith(HUB_SCHEME) else []


def role_variables(env: Sequence[EnvVar]) -> list[EnvVar]:
    """Return the variables of the trainer's or the engine's container."""
    return [v for v in env if v.value_from is None or not _is_for_fetcher(v)]


def secret_variables(source: str, variables: Variables) -> list[SecretVariable]:
    """Return the variables that a container reads from a Secret."""
    return [
        SecretVariable(field, v.name, v.value_from.secret_key_ref)
        for field, env in variables.items()
        for v in env
        if v.value_from is not None and (v in role_variables(env) or v in fetcher_variables(source, env))
    ]


def clear_text_credentials(model: RLModelSpec) -> list[str]:
    """Return the variables that have a value and are named like a credential, such as `trainer.env[HF_TOKEN]`."""
    return [
        f"{field}[{v.name}]"
        for field, env in run_variables(model).items()
        for v in env
        if v.value and _is_credential(v)
    ]


def _is_for_fetcher(variable: EnvVar) -> bool:
    return variable.name.startswith(HUB_PREFIX) and variable.name not in NOT_FOR_FETCHER


def _is_credential(variable: EnvVar) -> bool:
    name = variable.name.upper()
    harmless = any(fnmatchcase(name, pattern) for pattern in HARMLESS_NAMES)
    return not harmless and any(fnmatchcase(name, pattern) for pattern in CREDENTIAL_NAMES)
