"""Credentials and address in a request."""

from rlrun.protocol.user_storage import TOKEN_HEADER
from starlette.requests import Request

SCHEME = "Bearer "


def bearer_of(request: Request) -> str:
    """Return the token in `Authorization`, or an empty string."""
    given = request.headers.get("Authorization", "")
    return given.removeprefix(SCHEME) if given.startswith(SCHEME) else ""


def user_token_of(request: Request) -> str:
    """Return the credential of a user. The proxy of the API server removes `Authorization`."""
    return bearer_of(request) or request.headers.get(TOKEN_HEADER, "")


def client_of(request: Request) -> str:
    """Return the address of the connection."""
    return request.client.host if request.client is not None else ""
