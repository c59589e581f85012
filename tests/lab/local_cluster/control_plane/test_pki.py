"""Certificates and kubeconfigs."""

from pathlib import Path

import yaml
from cryptography import x509

from local_cluster.control_plane.pki import CertificateAuthority, write_kubeconfig


def test_certificates_verify_against_their_authority_and_are_kept(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    pair = authority.issue("server", "kube-apiserver", addresses=["localhost", "10.96.0.1"])
    ca = x509.load_pem_x509_certificate(authority.pair.certificate.read_bytes())
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    certificate.verify_directly_issued_by(ca)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.96.0.1"]
    assert pair.key.stat().st_mode & 0o077 == 0
    again = CertificateAuthority(tmp_path)
    assert again.issue("server", "ignored").certificate.read_bytes() == pair.certificate.read_bytes()
    x509.load_pem_x509_certificate(again.issue("second", "x").certificate.read_bytes()).verify_directly_issued_by(ca)


def test_kubeconfig_contains_no_paths_and_is_private(tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "pki")
    file = tmp_path / "kubeconfig"
    write_kubeconfig(file, "https://127.0.0.1:1", authority, authority.issue("admin", "a", "system:masters"), "c")
    assert file.stat().st_mode & 0o077 == 0
    assert str(tmp_path) not in file.read_text()
    assert yaml.safe_load(file.read_text())["current-context"] == "c"
