"""Parses client requests to the proxy (CONNECT with credentials), and builds error responses. Does no I/O."""

import base64
import binascii
import json
from dataclasses import dataclass
from http import HTTPStatus

from rlrun.constants import Reason
from rlrun.protocol.egress import USER, Destination

MAX_HEAD_BYTES = 16 * 1024
"""Maximum size of a request head in bytes. A grant with 32 hosts takes up to 12 KiB."""
END_OF_HEAD = b"\r\n\r\n"


class EgressRefused(Exception):
    """Raised for a connection that the proxy does not open."""

    def __init__(self, status: HTTPStatus, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.reason = reason
        self.message = message

    def response(self) -> bytes:
        """Return the HTTP response, with the reason as JSON."""
        body = json.dumps({"reason": self.reason, "message": self.message}).encode()
        head = [
            f"HTTP/1.1 {self.status.value} {self.status.phrase}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
        ]
        if self.status is HTTPStatus.PROXY_AUTHENTICATION_REQUIRED:
            head.append('Proxy-Authenticate: Basic realm="rlrun"')
        return "\r\n".join(head).encode() + END_OF_HEAD + body


@dataclass(frozen=True)
class ConnectRequest:
    """Destination of a request, and its signed grant."""

    destination: Destination
    grant: str


def parse_request(head: bytes) -> ConnectRequest:
    """Parse the head of a request up to its empty line. Raises EgressRefused."""
    try:
        lines = head.decode("ascii").split("\r\n")
        method, target, version = lines[0].split(" ")
    except ValueError as error:
        raise _bad_request("it is not an HTTP request") from error
    if version not in ("HTTP/1.0", "HTTP/1.1"):
        raise _bad_request("it is not an HTTP/1 request")
    if method != "CONNECT":
        raise EgressRefused(
            HTTPStatus.METHOD_NOT_ALLOWED,
            Reason.EGRESS_NOT_ALLOWED,
            f"This proxy accepts only CONNECT, for TLS connections, not {method[:16]}. Use an https:// address.",
        )
    if ":" not in target:
        raise _bad_request("CONNECT needs a host and a port")
    try:
        destination = Destination.parse(target)
    except ValueError as error:
        raise _bad_request(str(error)) from error
    if "*" in destination.host or not destination.host:
        raise _bad_request("CONNECT needs the name of one host")
    return ConnectRequest(destination, _password(lines[1:]))


def _password(lines: list[str]) -> str:
    values = [
        value.strip()
        for name, colon, value in (line.partition(":") for line in lines)
        if colon and name.lower() == "proxy-authorization"
    ]
    scheme, _, encoded = values[0].partition(" ") if len(values) == 1 else ("", "", "")
    try:
        user, _, password = base64.b64decode(encoded.strip(), validate=True).decode("ascii").partition(":")
    except (binascii.Error, UnicodeError):
        user = password = ""
    if scheme.lower() != "basic" or user != USER or not password:
        raise missing_credentials("The request has no environment credentials")
    return password


def missing_credentials(why: str) -> EgressRefused:
    """Return the error for a request without a valid grant."""
    return EgressRefused(
        HTTPStatus.PROXY_AUTHENTICATION_REQUIRED,
        Reason.EGRESS_NOT_ALLOWED,
        f"{why}. Use the proxy in the variable HTTPS_PROXY, which is set for environments with `egress`.",
    )


def _bad_request(why: str) -> EgressRefused:
    return EgressRefused(HTTPStatus.BAD_REQUEST, Reason.INVALID_REQUEST, f"The request was refused: {why}.")
