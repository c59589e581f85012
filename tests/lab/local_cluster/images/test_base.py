"""The base image's pip reaches the index that this machine's pip reaches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from local_cluster.images import base
from local_cluster.images.base import pip_configuration, remove_newest_containers


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


def test_containers_that_builds_have_left_are_removed_and_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [{"id": "1", "imagename": "localhost/rlrun-newest-python:abc"}, {"id": "2", "imagename": "localhost/x:1"}]
    calls: list[tuple[str, ...]] = []

    def buildah(*words: str) -> str:
        calls.append(words)
        return json.dumps(listed) if words[0] == "containers" else ""

    monkeypatch.setattr(base, "buildah", buildah)
    remove_newest_containers()
    listed.clear()
    remove_newest_containers()
    assert calls == [("containers", "--json"), ("rm", "1"), ("containers", "--json")]
