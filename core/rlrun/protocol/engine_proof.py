"""Mutual authentication of rlrun-server and the engines of a serving pool.

rlrun-server sends the pool's server key, which is valid for the users' paths of the pool. Operator and server derive it
from the platform's key, so that the server need not read Secrets in namespaces. Users of a namespace could point the
pool's Service to another server (with an ExternalName, or their own endpoints). Each request therefore has a nonce, and
the response a proof (HMAC-SHA256 of the nonce). Responses without a valid proof are discarded.
"""

import hashlib
import hmac

POOL_SERVER_KEY_VARIABLE = "RLRUN_POOL_SERVER_KEY"
NONCE_HEADER = "X-Rlrun-Nonce"
PROOF_HEADER = "X-Rlrun-Proof"


def pool_server_key(platform_key: bytes, namespace: str, pool: str) -> str:
    """Return the key, in hexadecimal, with which rlrun-server accesses a pool's engines. `platform_key` is the key that
    signs the grants sent to rlrun-server.
    """
    # The slashes separate this use of the platform key from signed grants, which are base64url text.
    return hmac.new(platform_key, f"pool-server/{namespace}/{pool}".encode(), hashlib.sha256).hexdigest()


def proof_of(key: str, nonce: str) -> str:
    """Return the proof that an engine knows the key: the HMAC-SHA256 of `proof/` and the nonce, in hexadecimal."""
    return hmac.new(key.encode(), f"proof/{nonce}".encode(), hashlib.sha256).hexdigest()


def is_proven(key: str, nonce: str, proof: str) -> bool:
    """Return whether the proof for the nonce is valid."""
    return hmac.compare_digest(proof_of(key, nonce).encode(), proof.encode("utf-8", "surrogateescape"))
