"""Authentication between a run's processes: each request carries the run's token (RFC 6750, `Authorization: Bearer`).

The operator derives the tokens of a run and passes them to its pods, so that the isolation of runs does not depend only
on NetworkPolicies. Environments, which run user code, have a separate token, which is valid only for environment
servers and packages.
"""

import hmac
from collections.abc import Mapping

TOKEN_VARIABLE = "RLRUN_TOKEN"
"""Variable with the token of the process: the run's token, or the environments' token in an environment's pod."""
ENVIRONMENT_TOKEN_VARIABLE = "RLRUN_ENVIRONMENT_TOKEN"
"""Variable of the orchestrator with the environments' token."""
OPEN_PATHS_VARIABLE = "RLRUN_OPEN_PATHS"
"""Variable with the paths of an engine that require no token, separated by commas (see `rlrun_engine_access`)."""
POOL_API_KEY_VARIABLE = "RLRUN_POOL_API_KEY"
"""Variable with the API key of a serving pool's users, valid only for the paths in USER_PATHS_VARIABLE."""
POOL_API_KEY_SECRET_VARIABLE = "RLRUN_POOL_API_KEY_SECRET"
"""Variable with the name of the Secret that contains the pool's API key, for error messages."""
USER_PATHS_VARIABLE = "RLRUN_USER_PATHS"
"""Variable with an engine's paths, separated by commas, that users may call with their API key."""
USER_API_KEY = "OPENAI_API_KEY"
"""Entry of a serving pool's Secret that contains the API key. OpenAI clients read a variable with the same name."""
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths for probes and Prometheus, which require no token."""


def bearer(token: str | None) -> dict[str, str]:
    """Return the header with the token, or no headers if the token is None."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def is_allowed(path: str, headers: Mapping[str, str], token: str | None) -> bool:
    """Return whether a request is authorized. If `token` is None, as in a process outside a cluster, all requests are
    authorized.
    """
    if not token or path in OPEN_PATHS:
        return True
    given = headers.get("Authorization", "")
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {token}".encode())
