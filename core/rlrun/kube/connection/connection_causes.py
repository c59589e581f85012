"""Human-readable reasons why a request got no response.

urllib3 wraps the cause in several exceptions, whose texts contain addresses of Python objects and URLs.
"""

import socket
import ssl


def cause_of(error: BaseException) -> str:
    """Return why no response arrived, for example `Connection refused`. If unknown, return the exception's name."""
    chain = _chain(error)
    for cause in chain:
        if isinstance(cause, ssl.SSLCertVerificationError):
            return f"its certificate is not trusted: {cause.verify_message}"
        if isinstance(cause, ssl.SSLError):
            return f"TLS failed: {getattr(cause, 'reason', None) or cause.args[-1]}"
        if isinstance(cause, socket.gaierror):
            return f"the host name cannot be resolved: {cause.strerror}"
    if any(isinstance(cause, TimeoutError) or "Timeout" in type(cause).__name__ for cause in chain):
        return "timed out"
    for cause in chain:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
    return type(chain[-1]).__name__


def _chain(error: BaseException) -> list[BaseException]:
    """Return the exception and the exceptions that it wraps, innermost last."""
    chain: list[BaseException] = []
    todo: list[object] = [error]
    while todo:
        cause = todo.pop(0)
        if isinstance(cause, BaseException) and not any(cause is known for known in chain):
            chain.append(cause)
            todo += [getattr(cause, "reason", None), cause.__cause__, cause.__context__, *cause.args]
    return chain
