"""The base image's pip reaches the index that this machine's pip reaches."""

from __future__ import annotations

from pathlib import Path

from local_cluster.images.base import pip_configuration


def test_later_file_and_environment_win(tmp_path: Path) -> None:
    system, user = tmp_path / "system", tmp_path / "user"
    system.write_text("[global]\nindex-url = one\ntimeout = 5\n[install]\nuser = yes\n")
    user.write_text("[global]\nindex-url = two\n")
    text = pip_configuration([system, user, tmp_path / "absent"], {"PIP_TIMEOUT": "9"}, has_ca_bundle=False)
    assert text == "[global]\nindex-url = two\ntimeout = 9\n"


def test_paths_of_this_machine_stay_out_and_the_bundle_is_named(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text("[global]\ncert = /home/me/ca.pem\nfind-links = /home/me/wheels\n")
    text = pip_configuration([file], {"PIP_FIND_LINKS": "/home/me/wheels"}, has_ca_bundle=True)
    assert text == "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n"
