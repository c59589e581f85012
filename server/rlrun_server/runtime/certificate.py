"""Certificate of the server, reloaded when its files change."""

import asyncio
import logging
import ssl
from pathlib import Path

from cryptography import x509

from rlrun_server.runtime.metrics import CERTIFICATE_END, CERTIFICATE_START

log = logging.getLogger(__name__)

CHAIN, KEY = "tls.crt", "tls.key"
LOOK_SECONDS = 60.0
"""Pause between two reads of the files, in seconds. The kubelet takes about as long to update a Secret."""


class CertificateInvalid(Exception):
    """Raised if the certificate or key cannot be loaded, or if they do not match."""


class Certificate:
    """Certificate and key in a folder, as a TLS context for a server."""

    def __init__(self, folder: Path) -> None:
        """Load the files. Raises CertificateInvalid."""
        self._folder = folder
        self._loaded: tuple[bytes, ...] = ()
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.load()

    def load(self) -> bool:
        """Load the files if they have changed, and use them for new connections. Returns whether they have changed.
        Raises CertificateInvalid.
        """
        try:
            files = tuple((self._folder / name).read_bytes() for name in (CHAIN, KEY))
            if files == self._loaded:
                return False
            # Try another context first: a context keeps a certificate even if its key is rejected afterwards.
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self._folder / CHAIN, self._folder / KEY)
            self.context.load_cert_chain(self._folder / CHAIN, self._folder / KEY)
        except OSError as error:  # ssl.SSLError is a subclass
            raise CertificateInvalid(
                f"{self._folder} must contain {CHAIN} and its key {KEY} in PEM format ({error}): check the Secret "
                "server.tls.existingSecret, or delete the operator-generated Secret and restart the operator"
            ) from error
        self._loaded = files
        _show_validity(files[0])
        return True

    async def follow(self) -> None:
        """Load changed files until cancelled. Logs an error and keeps the previous certificate if they are invalid."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            try:
                if self.load():
                    log.info("the certificate has changed; new connections use the new one")
            except CertificateInvalid as error:
                log.error("cannot load the new certificate, so the previous one stays in use: %s", error)


def _show_validity(chain: bytes) -> None:
    """Set the validity metrics from the server's certificate, which is the first in the chain."""
    try:
        certificate = x509.load_pem_x509_certificate(chain)
    except ValueError as error:  # OpenSSL accepts certificates that this parser rejects
        log.warning("the metrics do not show the expiry of the certificate: %s", error)
        return
    CERTIFICATE_START.set(certificate.not_valid_before_utc.timestamp())
    CERTIFICATE_END.set(certificate.not_valid_after_utc.timestamp())
