"""Causes of requests without an answer, as people read them.

urllib3 wraps the cause in several exceptions, and their texts have addresses of objects and URLs.
"""

import socket
import ssl


def cause_of(error: BaseException) -> str:
    """Return why no answer came, for example `Connection refused`. The name of the exception if nothing says it."""
    chain = _chain(error)
    for found in chain:
        if isinstance(found, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {found.verify_message}"
        if isinstance(found, ssl.SSLError):
            return f"TLS failed: {getattr(found, 'reason', None) or found.args[-1]}"
        if isinstance(found, socket.gaierror):
            return f"the name of its host is not known: {found.strerror}"
    if any(isinstance(found, TimeoutError) or "Timeout" in type(found).__name__ for found in chain):
        return "timed out"
    for found in chain:
        if isinstance(found, OSError) and found.strerror:
            return found.strerror
    return type(chain[-1]).__name__


def _chain(error: BaseException) -> list[BaseException]:
    """Return the exception and those that it wraps, innermost last."""
    chain: list[BaseException] = []
    todo: list[object] = [error]
    while todo:
        found = todo.pop(0)
        if isinstance(found, BaseException) and not any(found is known for known in chain):
            chain.append(found)
            todo += [getattr(found, "reason", None), found.__cause__, found.__context__, *found.args]
    return chain
