"""Access of a run's processes to each other: each request has the run's token (RFC 6750, `Authorization: Bearer`).

The operator derives the tokens of a run and gives them to its pods. Isolation of runs does not rest on a network that
enforces policies alone. Environments, which run user code, have a token of their own, which is good for the
environment servers and for packages only.
"""

import hmac
from collections.abc import Mapping

TOKEN_VARIABLE = "RLRUN_TOKEN"
"""Token of the process: of the run, or in an environment's pod that of environments."""
ENVIRONMENT_TOKEN_VARIABLE = "RLRUN_ENVIRONMENT_TOKEN"
"""Token of environments, as the orchestrator has it."""
OPEN_PATHS_VARIABLE = "RLRUN_OPEN_PATHS"
"""Paths of an engine that need no token, separated by commas (see `rlrun_engine_access`)."""
POOL_API_KEY_VARIABLE = "RLRUN_POOL_API_KEY"
"""Key of a serving pool's users, good for USER_PATHS_VARIABLE only."""
POOL_API_KEY_SECRET_VARIABLE = "RLRUN_POOL_API_KEY_SECRET"
"""Name of the Secret with that key, for the message that asks for it."""
USER_PATHS_VARIABLE = "RLRUN_USER_PATHS"
"""Paths of an engine that its users may call with their key, separated by commas."""
USER_API_KEY = "OPENAI_API_KEY"
"""Entry of that Secret: the variable that clients of OpenAI's API read."""
OPEN_PATHS = frozenset({"/healthz", "/readyz", "/metrics"})
"""Paths of probes and of Prometheus, which have no token."""


def bearer(token: str | None) -> dict[str, str]:
    """Return the headers of a request with the token, none without one."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def is_allowed(path: str, headers: Mapping[str, str], token: str | None) -> bool:
    """Return whether a request may pass. A process without a token, outside of a cluster, accepts all requests."""
    if not token or path in OPEN_PATHS:
        return True
    given = headers.get("Authorization", "")
    return hmac.compare_digest(given.encode("utf-8", "surrogateescape"), f"Bearer {token}".encode())
