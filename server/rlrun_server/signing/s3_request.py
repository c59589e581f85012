"""Parser of S3 requests, which determines operation, bucket and key from method, URL and headers.

Only the requests listed here are signed. S3 servers may normalize keys: SeaweedFS, for example, stores `a//x` as `a/x`,
which could be in a different folder. So a key is accepted only in the canonical spelling, which all servers interpret
alike.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import parse_qsl, quote, unquote

from rlrun.protocol.storage_access import PAYLOAD_HASH

QUERY = re.compile(r"(?:[A-Za-z0-9%._~=-]+(?:&[A-Za-z0-9%._~=-]+)*)?")
"""Pattern of the queries that the signer and S3 interpret alike. The signer would stop at a `#`, only S3 decodes a `+`
to a space, and between two `&` the signer would sign a parameter without a name."""
SEGMENT = re.compile(r"[A-Za-z0-9._+=@~,-]{1,255}")
MAX_SEGMENTS = 32
LIST_PARAMETERS = frozenset(
    {"prefix", "delimiter", "max-keys", "encoding-type", "continuation-token", "start-after", "fetch-owner"}
)
UPLOAD_LIST_PARAMETERS = frozenset(
    {"prefix", "delimiter", "max-uploads", "encoding-type", "key-marker", "upload-id-marker"}
)
HEADERS = frozenset(
    {"content-md5", "content-type", "range", "if-match", "if-none-match", PAYLOAD_HASH,
     "x-amz-sdk-checksum-algorithm", "x-amz-checksum-crc32", "x-amz-checksum-crc32c", "x-amz-checksum-sha1",
     "x-amz-checksum-sha256", "x-amz-checksum-mode"}
)  # fmt: skip
"""Headers that may be signed. x-amz-copy-source is not one of them, because it can read any object in the bucket."""
CONDITION, ONCE = "if-none-match", "*"
"""Header that makes S3 store an object only if none exists under its key."""
DIGEST = re.compile(r"[0-9a-f]{64}|UNSIGNED-PAYLOAD")


class Operation(StrEnum):
    """Effect of a request on the objects of a folder."""

    read = "read"
    """GET or HEAD of an object."""
    list = "list"
    """GET of the list of a folder's objects or unfinished uploads."""
    write = "write"
    """PUT of an object, and all requests of a multipart upload."""
    delete = "delete"


class RequestNotAllowed(Exception):
    """Raised if rlrun-server does not sign a request. The message says why."""


@dataclass(frozen=True)
class S3Request:
    """Parsed request to S3."""

    operation: Operation
    bucket: str
    key: str
    """Key of the object. For `list`, the prefix, which ends with a slash."""
    may_replace: bool = False
    """True if the request may replace an existing object, because it lacks `If-None-Match: *`."""


_BY_QUERY: Mapping[tuple[str, frozenset[str]], Operation] = {
    ("GET", frozenset()): Operation.read,
    ("HEAD", frozenset()): Operation.read,
    ("PUT", frozenset()): Operation.write,
    ("PUT", frozenset({"partNumber", "uploadId"})): Operation.write,
    ("POST", frozenset({"uploads"})): Operation.write,
    ("POST", frozenset({"uploadId"})): Operation.write,
    ("DELETE", frozenset({"uploadId"})): Operation.write,
    ("DELETE", frozenset()): Operation.delete,
}
"""Operation on an object by HTTP method and names of the query parameters."""
STORES = frozenset({("PUT", frozenset[str]()), ("POST", frozenset({"uploadId"}))})
"""Requests that create an object: PUT of an object, and completion of a multipart upload."""


def read_request(method: str, url: str, headers: Mapping[str, str], bucket: str, base: str) -> S3Request:
    """Parse a request to S3 into its operation, bucket and key.

    `base` is the URL of the bucket, without a trailing slash. Raises RequestNotAllowed.
    """
    _check_headers(headers)
    path, _, query = url.partition("?")
    if not QUERY.fullmatch(query):
        raise RequestNotAllowed(
            "the query of the URL has characters that are not percent-encoded, or an empty parameter"
        )
    if path != base and not path.startswith(f"{base}/"):
        raise RequestNotAllowed(f"the URL is not in bucket {bucket} at the platform's S3 endpoint")
    parameters = _parameters(query)
    if path in (base, f"{base}/"):
        return S3Request(Operation.list, bucket, _listed_prefix(method, parameters))
    operation = _BY_QUERY.get((method, frozenset(parameters) - {"x-id"}))
    if operation is None:
        raise RequestNotAllowed(f"rlrun-server does not sign {method!r} with the parameters {sorted(parameters)}")
    stores = (method, frozenset(parameters) - {"x-id"}) in STORES
    condition = next((value for name, value in headers.items() if name.lower() == CONDITION), "")
    key = _checked_key(path.removeprefix(f"{base}/"))
    return S3Request(operation, bucket, key, may_replace=stores and condition != ONCE)


def _check_headers(headers: Mapping[str, str]) -> None:
    if len({name.lower() for name in headers}) != len(headers):
        raise RequestNotAllowed("a header is repeated")
    others = sorted(name for name in headers if name.lower() not in HEADERS)
    if others:
        raise RequestNotAllowed(f"rlrun-server does not sign requests with the headers {', '.join(map(repr, others))}")
    digest = next((value for name, value in headers.items() if name.lower() == PAYLOAD_HASH), "")
    if not DIGEST.fullmatch(digest):
        raise RequestNotAllowed(f"{PAYLOAD_HASH} must be the SHA-256 of the body in hexadecimal, or UNSIGNED-PAYLOAD")
    if any(not value.isascii() or not value.isprintable() for value in headers.values()):
        raise RequestNotAllowed("a header has a value that is not printable ASCII")


def _parameters(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=16)
    except ValueError as error:
        raise RequestNotAllowed("the query of the URL has more than 16 parameters") from error
    parameters = dict(pairs)
    if len(parameters) != len(pairs):
        raise RequestNotAllowed("a query parameter is repeated")
    return parameters


def _listed_prefix(method: str, parameters: Mapping[str, str]) -> str:
    names = frozenset(parameters)
    objects = parameters.get("list-type") == "2" and names <= {"list-type"} | LIST_PARAMETERS
    uploads = parameters.get("uploads") == "" and names <= {"uploads"} | UPLOAD_LIST_PARAMETERS
    if method != "GET" or not (objects or uploads):
        raise RequestNotAllowed(
            f"rlrun-server does not sign {method!r} requests for a bucket with the parameters {sorted(names)}"
        )
    prefix = parameters.get("prefix", "")
    if not prefix.endswith("/"):
        raise RequestNotAllowed("a list request needs a prefix that ends with a slash")
    _check_segments(prefix[:-1])
    return prefix


def _checked_key(path: str) -> str:
    # Bytes that are not UTF-8 are replaced, so the text no longer matches the path.
    key = unquote(path, errors="replace") if path.isascii() else ""
    if quote(key, safe="/~") != path:
        raise RequestNotAllowed("the key is not percent-encoded in the canonical form")
    # Servers on a file system keep folders as keys with a slash at the end.
    _check_segments(key.removesuffix("/"))
    return key


def _check_segments(key: str) -> None:
    segments = key.split("/")
    if len(segments) > MAX_SEGMENTS or not all(SEGMENT.fullmatch(s) and s not in (".", "..") for s in segments):
        raise RequestNotAllowed(
            "a key must have 1 to 32 segments of up to 255 letters, digits and ._+=@~,- except . and .."
        )
