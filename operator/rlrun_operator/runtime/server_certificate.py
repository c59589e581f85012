"""TLS certificate of rlrun-server, and the certificate authority that the pods of runs trust.

The operator creates both once, unless the platform team provides a Secret, for example from cert-manager. The key of a
created authority is discarded after it has signed the certificate.
"""

import asyncio
import base64
import binascii
import logging
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import SECRET
from rlrun.kube.objects import Obj

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.runtime.platform_key import build_secret

log = logging.getLogger(__name__)

CERTIFICATE, PRIVATE_KEY, AUTHORITY = "tls.crt", "tls.key", "ca.crt"
"""Keys in a Secret of type kubernetes.io/tls. The last one is added by cert-manager."""
VALID = timedelta(days=3650)
CLOCK_SKEW = timedelta(hours=1)
"""Time by which the start of a certificate's validity is backdated, because clocks differ."""
LOOK_SECONDS = 60.0
"""Seconds between two reads of the Secret."""
RENEW_BEFORE = timedelta(days=30)
"""Remaining validity below which a created certificate is replaced when the operator starts."""


class CertificateMissing(Exception):
    """Raised if the Secret provided by the platform team does not exist, lacks the certificate or is unreadable."""


async def ensure_authority(cluster: AsyncKubeClient, settings: OperatorSettings, now: datetime) -> str:
    """Return the CA certificates (PEM) that verify rlrun-server's certificate, or an empty string if pods use the CAs
    in their image.

    Creates or renews the Secret if the settings allow it. Raises ApiError or CertificateMissing.
    """
    wanted = settings.storage_server_certificate
    if wanted is None:
        return ""
    host = urlsplit(settings.storage_server).hostname or ""
    where = wanted.secret
    data = _decode(await cluster.get(SECRET, where.namespace, where.name))
    if not wanted.create:
        if CERTIFICATE not in data:
            raise CertificateMissing(
                f"Secret {where.namespace}/{where.name} (server.tls.existingSecret) does not exist or has no "
                f"{CERTIFICATE}: store a certificate for {host} in it, together with {PRIVATE_KEY} and {AUTHORITY}"
            )
        try:
            return data.get(AUTHORITY, b"").decode()
        except UnicodeDecodeError:
            raise CertificateMissing(
                f"{AUTHORITY} in Secret {where.namespace}/{where.name} (server.tls.existingSecret) is not PEM text: "
                "store the authority's certificate as PEM, or remove the entry if the authority is a public one"
            ) from None
    if not _is_usable(data, host, now):
        if data:
            log.warning(
                "renewing the certificate in Secret %s/%s: active runs do not trust the new one until their next "
                "attempt"
            , where.namespace, where.name)  # fmt: skip
        data = make_certificate(host, now)
        await cluster.apply(build_secret(where.namespace, where.name, data, "kubernetes.io/tls"))
    return data[AUTHORITY].decode()


async def follow_authority(
    cluster: AsyncKubeClient,
    settings: OperatorSettings,
    begun: str,
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Wait until the authority in the Secret differs from `begun`, the authority with which this process started. Waits
    forever if the settings name no Secret.
    """
    wanted = settings.storage_server_certificate
    while wanted is None:
        await sleep(LOOK_SECONDS)
    where = wanted.secret
    while True:
        await sleep(LOOK_SECONDS)
        try:
            data = _decode(await cluster.get(SECRET, where.namespace, where.name))
        except (ApiError, TimeoutError) as error:
            log.info("Could not read Secret %s/%s: %s", where.namespace, where.name, error)
            continue
        if CERTIFICATE in data and data.get(AUTHORITY, b"").decode(errors="replace") != begun:
            log.warning(
                "the authority in Secret %s/%s has changed: restarting the operator. Active runs trust the new "
                "authority from their next attempt"
            , where.namespace, where.name)  # fmt: skip
            return


def make_certificate(host: str, now: datetime) -> dict[str, bytes]:
    """Return the files of a server certificate signed by a new authority."""
    authority_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rlrun")])
    authority = (
        _builder(issuer, issuer, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    # The host name is in the extension below, because a common name has at most 64 characters.
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rlrun-server")])
    certificate = (
        _builder(subject, issuer, key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    return {
        CERTIFICATE: certificate.public_bytes(serialization.Encoding.PEM),
        PRIVATE_KEY: key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        ),
        AUTHORITY: authority.public_bytes(serialization.Encoding.PEM),
    }


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + VALID)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _is_usable(data: Mapping[str, bytes], host: str, now: datetime) -> bool:
    if not {CERTIFICATE, PRIVATE_KEY, AUTHORITY} <= data.keys():
        return False
    try:
        certificate = x509.load_pem_x509_certificate(data[CERTIFICATE])
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return False
    ends_late = certificate.not_valid_after_utc > now + RENEW_BEFORE
    return ends_late and host in names.get_values_for_type(x509.DNSName)


def _decode(secret: Obj | None) -> dict[str, bytes]:
    decoded = {}
    for name, value in ((secret or {}).get("data") or {}).items():
        try:
            decoded[name] = base64.b64decode(value, validate=True)
        except binascii.Error:
            continue
    return decoded
