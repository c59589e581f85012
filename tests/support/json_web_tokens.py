"""JSON Web Tokens without a valid signature."""

import base64
import json


def json_web_token(**claims: object) -> str:
    """Return a token with these claims."""
    return ".".join([base64url({}), base64url(claims), "signature"])


def base64url(part: object) -> str:
    """Return a part of a token: bytes as they are, others as JSON."""
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).decode().rstrip("=")
