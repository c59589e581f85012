"""Certificates of the platform in the settings of the operator."""

from pathlib import Path

import certifi
import pytest
from rlrun.service.trust_bundle import certificates
from rlrun_operator.config.settings import OperatorSettings, SettingsError
from rlrun_operator.runtime import trusted_authorities
from rlrun_operator.runtime.trusted_authorities import with_ca_bundle

from local_cluster.control_plane.pki import CertificateAuthority

S3 = {"bucket": "rlrun"}


def test_without_a_file_the_settings_are_the_same() -> None:
    settings = OperatorSettings.model_validate({"s3": S3})
    assert with_ca_bundle(settings) is settings


def test_the_certificates_are_read_without_the_public_ones(tmp_path: Path) -> None:
    own = CertificateAuthority(tmp_path).pair.certificate.read_text()
    file = tmp_path / "both.crt"
    file.write_text(own + Path(certifi.where()).read_text("utf-8"))
    settings = with_ca_bundle(OperatorSettings.model_validate({"s3": S3, "caBundleFile": str(file)}))
    assert certificates(settings.ca_bundle) == certificates(own)


def test_a_file_of_public_authorities_adds_nothing() -> None:
    settings = with_ca_bundle(OperatorSettings.model_validate({"s3": S3, "caBundleFile": certifi.where()}))
    assert settings.ca_bundle == ""


@pytest.mark.parametrize("content", [None, "no certificate"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "ca.crt"
    if content is not None:
        file.write_text(content)
    with pytest.raises(SettingsError, match=r"caBundle: the certificates in .*ca.crt cannot be used"):
        with_ca_bundle(OperatorSettings.model_validate({"s3": S3, "caBundleFile": str(file)}))


def test_too_many_certificates_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CertificateAuthority(tmp_path).pair.certificate
    monkeypatch.setattr(trusted_authorities, "MAX_BYTES", 100)
    with pytest.raises(SettingsError, match="remove certificates of authorities that are not your own"):
        with_ca_bundle(OperatorSettings.model_validate({"s3": S3, "caBundleFile": str(file)}))
