"""Addressing styles of S3 URLs: the bucket is in the path or, as some clouds require, in the host name."""

import re
from collections.abc import Mapping
from enum import StrEnum
from ipaddress import ip_address
from urllib.parse import urlsplit

VARIABLE = "RLRUN_S3_ADDRESSING_STYLE"
SETTING = "s3.addressingStyle"
"""Chart value that sets the style, as named in messages."""
HOST_LABELS = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class AddressingStyle(StrEnum):
    """Position of the bucket's name in S3 URLs. The values are the same as in boto3."""

    path = "path"
    """`https://s3.example.com/bucket/key`. If no endpoint is set, boto3 chooses the style for each bucket."""
    virtual = "virtual"
    """`https://bucket.s3.example.com/key`."""


def read_addressing_style(variables: Mapping[str, str]) -> AddressingStyle:
    """Return the style in RLRUN_S3_ADDRESSING_STYLE, by default `path`. Raises ValueError if the value is unknown."""
    given = variables.get(VARIABLE) or AddressingStyle.path
    if given not in list(AddressingStyle):
        raise ValueError(f"{VARIABLE} is {given!r}: set it to path or virtual")
    return AddressingStyle(given)


def addressing_problem(style: AddressingStyle, endpoint: str | None, bucket: str) -> str:
    """Return why the bucket cannot be addressed in this style at the endpoint, or an empty string if it can."""
    if style == AddressingStyle.path:
        return ""
    url = urlsplit(endpoint or "https://s3.amazonaws.com")
    remedy = f"set {SETTING} to path, or"
    if _is_address(url.hostname or ""):
        return (
            f"{SETTING} is virtual, but the host of {endpoint} is an IP address: {remedy} use a host name in "
            f"s3.endpoint"
        )
    if "." in bucket and url.scheme == "https":
        return (
            f"{SETTING} is virtual, but wildcard certificates do not cover {bucket!r}, whose name contains a dot: "
            f"{remedy} use a bucket without a dot in its name"
        )
    if not HOST_LABELS.fullmatch(bucket):
        return (
            f"{SETTING} is virtual, but {bucket!r} cannot be part of a host name: {remedy} use a bucket whose "
            "name has only lower-case letters, digits and hyphens"
        )
    return ""


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
