"""Key with which rlrun-server asks the engines of a serving pool, and how they prove that they have it too.

The key opens the users' paths of one pool. Operator and server derive it from the platform's key, so that the server
need not read Secrets of namespaces.

Users of a namespace may lead the name of the pool's Service to another server (an ExternalName, or endpoints of their
own). Each request therefore has a nonce, and the response a proof (HMAC-SHA256 of the nonce): a response without it is
never shown to anyone.
"""

import hashlib
import hmac

POOL_SERVER_KEY_VARIABLE = "RLRUN_POOL_SERVER_KEY"
NONCE_HEADER = "X-Rlrun-Nonce"
PROOF_HEADER = "X-Rlrun-Proof"


def pool_server_key(platform_key: bytes, namespace: str, pool: str) -> str:
    """Return the key of a pool in hexadecimal. `platform_key`: the key of grants for rlrun-server."""
    # Grants are signed with the same platform key: base64url text, which has no slash.
    return hmac.new(platform_key, f"pool-server/{namespace}/{pool}".encode(), hashlib.sha256).hexdigest()


def proof_of(key: str, nonce: str) -> str:
    """Return what an engine with the key answers to a nonce, in hexadecimal."""
    return hmac.new(key.encode(), f"proof/{nonce}".encode(), hashlib.sha256).hexdigest()


def is_proven(key: str, nonce: str, proof: str) -> bool:
    """Return whether the proof was made by an engine that has the key."""
    return hmac.compare_digest(proof_of(key, nonce).encode(), proof.encode("utf-8", "surrogateescape"))
