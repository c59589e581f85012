"""The file with the public authorities and those of the platform."""

import ssl
from pathlib import Path

import certifi
import pytest
from rlrun.constants import CA_BUNDLE_FILE_VARIABLE, CA_BUNDLE_VARIABLE, ExitCode
from rlrun.service.trust_bundle import additional, certificates, main, merge

from local_cluster.control_plane.pki import CertificateAuthority

PUBLIC = Path(certifi.where()).read_text("utf-8")


@pytest.fixture
def own(tmp_path: Path) -> str:
    return CertificateAuthority(tmp_path / "authority").pair.certificate.read_text()


@pytest.mark.parametrize("is_file", [True, False])
def test_the_file_has_the_public_authorities_and_the_own(tmp_path: Path, own: str, is_file: bool) -> None:
    (tmp_path / "own").write_text(own)
    variables = {CA_BUNDLE_FILE_VARIABLE: str(tmp_path / "own")} if is_file else {CA_BUNDLE_VARIABLE: own}
    assert main([str(tmp_path / "all")], variables) == ExitCode.COMPLETED
    context = ssl.create_default_context(cafile=str(tmp_path / "all"))
    trusted = set(context.get_ca_certs(binary_form=True))
    assert trusted >= {*certificates(own), *certificates(PUBLIC)}


def test_public_authorities_among_the_own_are_left_out(own: str) -> None:
    """trust-manager writes a ConfigMap with both, and comments between them."""
    bundle = f"# Own\n{own}\n# Public\n{PUBLIC}"
    assert certificates(additional(bundle)) == certificates(own)
    assert sorted(certificates(merge(bundle))) == sorted(certificates(merge(own)))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no PEM certificate"),
        ("-----BEGIN CERTIFICATE-----\n!!!!\n-----END CERTIFICATE-----", "certificate"),
        ("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----", "certificate 1 of 1 cannot be read"),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----", "no PEM certificate"),
    ],
)
def test_what_is_no_certificate_is_refused(
    tmp_path: Path, text: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path / "all")], {CA_BUNDLE_VARIABLE: text}) == ExitCode.CONFIGURATION
    assert why in capsys.readouterr().err
    assert not (tmp_path / "all").exists()


def test_a_missing_file_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path / "all")], {CA_BUNDLE_FILE_VARIABLE: "/nowhere/ca.crt"}) == ExitCode.CONFIGURATION
    assert "/nowhere/ca.crt" in capsys.readouterr().err
