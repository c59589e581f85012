"""JSON Web Tokens without a valid signature."""

import base64
import json


def json_web_token(**claims: object) -> str:
    """Return a token with these claims."""
    parts = (base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({}, claims))
    return ".".join([*parts, "signature"])
