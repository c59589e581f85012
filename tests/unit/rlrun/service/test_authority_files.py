"""A process whose certificate authorities have changed ends, and begins again with the new ones."""

import ssl
import threading
from pathlib import Path

import pytest
from rlrun.constants import CA_BUNDLE_FILE_VARIABLE
from rlrun.service import authority_files
from rlrun.service.authority_files import AuthorityFiles, end_on_change, follow_authorities
from rlrun.service.trust_bundle import certificates

from local_cluster.control_plane.pki import CertificateAuthority


@pytest.fixture
def authorities(tmp_path: Path) -> list[str]:
    return [CertificateAuthority(tmp_path / name).pair.certificate.read_text() for name in ("old", "new")]


def test_other_certificates_are_a_change_and_nothing_else_is(tmp_path: Path, authorities: list[str]) -> None:
    file, missing = tmp_path / "ca.crt", tmp_path / "missing"
    old, new = authorities
    file.write_text(old)
    files = AuthorityFiles([file, missing])
    assert files.find_change() is None
    for useless in ("", "no certificate", f"# a comment\n{old}\n", f"{new[:200]}"):
        file.write_text(useless)
        assert files.find_change() is None, useless
    file.unlink()
    assert files.find_change() is None
    file.write_text(old + new)
    assert files.find_change() == file
    missing.write_text(new)
    file.write_text(old)
    assert files.find_change() is None, "it was not trusted at the start"


def test_the_process_ends_once_after_a_change(tmp_path: Path, authorities: list[str]) -> None:
    (tmp_path / "ca.crt").write_text(authorities[0])
    ended = threading.Event()
    thread = end_on_change(AuthorityFiles([tmp_path / "ca.crt"]), ended.set, 0.01, 0.0)
    assert not ended.is_set()
    (tmp_path / "ca.crt").write_text(authorities[1])
    assert ended.wait(60)
    thread.join(60)
    assert not thread.is_alive()


def test_a_container_that_starts_again_has_the_new_bundle(
    tmp_path: Path, authorities: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its init container, which wrote the bundle, does not run again."""
    followed: list[AuthorityFiles] = []
    monkeypatch.setattr(authority_files, "end_on_change", followed.append)
    source, bundle = tmp_path / "ca.crt", tmp_path / "bundle"
    for authority in authorities:
        source.write_text(authority)
        follow_authorities({CA_BUNDLE_FILE_VARIABLE: str(source)}, bundle)
        context = ssl.create_default_context(cafile=str(bundle))
        assert set(certificates(authority)) <= set(context.get_ca_certs(binary_form=True))
    source.write_text("broken")
    before = bundle.read_text()
    follow_authorities({CA_BUNDLE_FILE_VARIABLE: str(source)}, bundle)
    assert bundle.read_text() == before
    assert len(followed) == 3
