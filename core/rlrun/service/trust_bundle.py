"""Writes a file that contains the public certificate authorities and those of the platform.

python -m rlrun.service.trust_bundle DEST

Variables such as SSL_CERT_FILE replace an image's authorities, and there is no variable with which all clients add
authorities. In each pod that connects to other servers, an init container therefore runs this module and writes a file.
The variables of the other containers point to this file. This works for Python, Go and Rust, in any image.
RLRUN_CA_BUNDLE contains the certificates in PEM, or RLRUN_CA_BUNDLE_FILE the path of a file with them.
"""

import os
import re
import ssl
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import certifi

from rlrun.constants import CA_BUNDLE_FILE_VARIABLE, CA_BUNDLE_VARIABLE, ExitCode

IMAGE_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
"""Certificate authorities of the operating system, in Debian and images based on it."""

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def certificates(text: str) -> list[bytes]:
    """Return the distinct certificates in PEM text as DER. Raises ValueError if there is no certificate, or if a
    certificate is invalid.
    """
    found = list(dict.fromkeys(_decode(match[0]) for match in _CERTIFICATE.finditer(text)))
    if not found:
        raise ValueError("no PEM certificate found (-----BEGIN CERTIFICATE-----)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    for number, certificate in enumerate(found, start=1):
        try:
            context.load_verify_locations(cadata=certificate)
        except ssl.SSLError as error:
            raise ValueError(f"certificate {number} of {len(found)} cannot be read: {error.reason}") from error
    return found


def public_certificates() -> list[bytes]:
    """Return the certificates that this image trusts: those of certifi and of the operating system."""
    texts = [Path(certifi.where()).read_text("utf-8")]
    if IMAGE_BUNDLE.is_file():
        texts.append(IMAGE_BUNDLE.read_text("utf-8"))
    return [_decode(match[0]) for text in texts for match in _CERTIFICATE.finditer(text)]


def additional(text: str) -> str:
    """Return the certificates in a PEM text, without the public certificates, as PEM. Returns an empty string if all of
    them are public. Raises ValueError if the text has no certificate, or if a certificate is invalid.

    A ConfigMap of trust-manager may contain the public certificates as well.
    """
    public = set(public_certificates())
    return _encode([certificate for certificate in certificates(text) if certificate not in public])


def merge(text: str) -> str:
    """Return the public certificates and the certificates in the text, without duplicates, in PEM. Raises
    ValueError.
    """
    return _encode(list(dict.fromkeys([*certificates(text), *public_certificates()])))


def main(arguments: Sequence[str], environment: Mapping[str, str] = os.environ) -> int:
    """Write the public certificates and those of `caBundle` to the file in the arguments. Returns the exit code: 64 if
    the certificates of `caBundle` cannot be used. Raises OSError if the file cannot be written.
    """
    source = environment.get(CA_BUNDLE_FILE_VARIABLE, "")
    try:
        text = Path(source).read_text("utf-8") if source else environment.get(CA_BUNDLE_VARIABLE, "")
        bundle = merge(text)
    except (OSError, ValueError) as error:
        print(
            f"The certificates of `caBundle` in {source or CA_BUNDLE_VARIABLE} cannot be used: {error}", file=sys.stderr
        )
        return ExitCode.CONFIGURATION
    Path(arguments[0]).write_text(bundle, "utf-8")
    return ExitCode.COMPLETED


def _decode(block: str) -> bytes:
    try:
        return ssl.PEM_cert_to_DER_cert(block)
    except ValueError as error:
        raise ValueError(f"a certificate is not valid base64: {error}") from error


def _encode(found: Sequence[bytes]) -> str:
    return "".join(map(ssl.DER_cert_to_PEM_cert, found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
