"""Certificate authority of a cluster, with certificates and kubeconfigs for its components.

The API server authenticates to the kubelet (logs, exec, port-forward) with a client certificate of this authority, and
verifies the kubelet's serving certificate against it.
"""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from local_cluster.host.atomic_files import write

VALID_DAYS = 3650
ADMINISTRATORS = "system:masters"


@dataclass(frozen=True)
class KeyPair:
    """Files of a certificate and its key."""

    certificate: Path
    key: Path


class CertificateAuthority:
    """Certificate authority in a directory: created on first use, read from there afterwards."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pair = KeyPair(directory / "ca.crt", directory / "ca.key")
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.pair.certificate.exists():
            key = serialization.load_pem_private_key(self.pair.key.read_bytes(), password=None)
            assert isinstance(key, ec.EllipticCurvePrivateKey)
            self._key = key
            self._certificate = x509.load_pem_x509_certificate(self.pair.certificate.read_bytes())
        else:
            self._key = ec.generate_private_key(ec.SECP256R1())
            self._certificate = self._make_own()
            _write_key(self.pair.key, self._key)
            self.pair.certificate.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, common_name: str, organization: str = "", addresses: Sequence[str] = ()) -> KeyPair:
        """Return a certificate for a server, a client, or both. Reuses an existing certificate with this name.

        Args:
            name: File name without suffix.
            common_name: User name in Kubernetes.
            organization: Group of the user in Kubernetes.
            addresses: DNS names and IP addresses of a server; a client needs none.
        """
        pair = KeyPair(self.directory / f"{name}.crt", self.directory / f"{name}.key")
        if pair.certificate.exists() and pair.key.exists():
            return pair
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.COMMON_NAME, common_name)]
        if organization:
            subject.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
        builder = (
            _with_validity(x509.CertificateBuilder())
            .subject_name(x509.Name(subject))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if addresses:
            names = x509.SubjectAlternativeName([_general_name(address) for address in addresses])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        _write_key(pair.key, key)
        pair.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        return pair

    def _make_own(self) -> x509.Certificate:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rlrun-local")])
        usage = x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=True,
            crl_sign=True,
            encipher_only=False,
            decipher_only=False,
        )
        return (
            _with_validity(x509.CertificateBuilder())
            .subject_name(name)
            .issuer_name(name)
            .public_key(self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def write_kubeconfig(file: Path, server: str, authority: CertificateAuthority, user: KeyPair, context: str) -> None:
    """Write a kubeconfig with embedded certificates, so that the file can be copied. Only its owner can read it."""

    def inline(path: Path) -> str:
        return base64.b64encode(path.read_bytes()).decode()

    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": context,
        "clusters": [
            {
                "name": context,
                "cluster": {"server": server, "certificate-authority-data": inline(authority.pair.certificate)},
            }
        ],
        "users": [
            {
                "name": context,
                "user": {
                    "client-certificate-data": inline(user.certificate),
                    "client-key-data": inline(user.key),
                },
            }
        ],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
    }
    write(file, yaml.safe_dump(config, sort_keys=False), mode=0o600)


def _with_validity(builder: x509.CertificateBuilder) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        builder.serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # Clocks of virtual machines may jump.
        .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
    )


def _general_name(address: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(address))
    except ValueError:
        return x509.DNSName(address)


def _write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as handle:
        handle.write(pem)
