"""Tokens of runs and pools. They are derived from the platform's key, so that they need not be stored."""

import hashlib
import hmac

from rlrun.protocol.access import ENVIRONMENT_TOKEN_VARIABLE, TOKEN_VARIABLE


def key_secret_name(lease_name: str) -> str:
    """Return the name of the Secret with the key for run tokens. The Secret is in the namespace of the operator's
    Lease.
    """
    return f"{lease_name}-run-tokens"


def run_token(key: bytes, uid: str) -> str:
    """Return the token with which the run's processes and the operator authenticate: HMAC-SHA256 in hexadecimal."""
    return _derive(key, f"run/{uid}")


def environment_token(key: bytes, uid: str) -> str:
    """Return the token of the run's environments, which run user code and must not have the run's token."""
    return _derive(key, f"environments/{uid}")


def pool_token(key: bytes, namespace: str, pool: str) -> str:
    """Return the token of a serving pool, with which the operator and sidecars load adapters."""
    return _derive(key, f"pools/{namespace}/{pool}")


def shared_pool_token(key: bytes, namespace: str, pool: str) -> str:
    """Return the token with which the operator sends orders to a shared pool and the sidecar calls the engine."""
    return _derive(key, f"shared-pools/{namespace}/{pool}")


def token_variables(key: bytes, uid: str) -> dict[str, str]:
    """Return the variables with the tokens for trainer, sidecars and orchestrator."""
    return {TOKEN_VARIABLE: run_token(key, uid), ENVIRONMENT_TOKEN_VARIABLE: environment_token(key, uid)}


def _derive(key: bytes, purpose: str) -> str:
    return hmac.new(key, purpose.encode(), hashlib.sha256).hexdigest()
