"""Programs of Debian packages, with an apt-get and a dpkg-deb that tell what they were asked for."""

import os
import shutil
from pathlib import Path

import pytest

from local_cluster.host.errors import LocalClusterError
from local_cluster.tools.host_packages import program_from_debian

APT = """#!/bin/sh
echo "$1" >>"{log}"
if [ "$1" = update ]; then touch "{lists}"; exit 0; fi
test -e "{lists}" || {{ echo "Unable to locate package $3" >&2; exit 100; }}
touch "$3_1.0_amd64.deb"
"""
UNPACK = """#!/bin/sh
mkdir "$3" "$3/usr" "$3/usr/bin" && touch "$3/usr/bin/promtool"
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with apt-get and dpkg-deb, and without package lists."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, text in (("apt-get", APT.format(log=tmp_path / "log", lists=tmp_path / "lists")), ("dpkg-deb", UNPACK)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    for name in ("sh", "touch", "mkdir"):
        (programs / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(programs))
    return tmp_path


def asked(machine: Path) -> list[str]:
    return (machine / "log").read_text().split()


def test_a_program_is_unpacked_once_after_the_package_lists_were_fetched(machine: Path) -> None:
    found = program_from_debian(machine / "cache", "prometheus", "promtool")
    assert found == machine / "cache" / "debian" / "prometheus" / "usr" / "bin" / "promtool"
    assert found.exists()
    assert asked(machine) == ["download", "update", "download"]
    assert program_from_debian(machine / "cache", "prometheus", "promtool") == found
    assert len(asked(machine)) == 3


def test_package_lists_that_suffice_are_not_fetched_again(machine: Path) -> None:
    (machine / "lists").touch()
    program_from_debian(machine / "cache", "prometheus", "promtool")
    assert asked(machine) == ["download"]


def test_a_program_on_the_path_is_used(machine: Path) -> None:
    own = machine / "bin" / "promtool"
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert program_from_debian(machine / "cache", "prometheus", "promtool") == own
    assert not (machine / "log").exists()


def test_a_machine_without_apt_is_told_what_to_do(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(LocalClusterError, match="Put promtool on PATH"):
        program_from_debian(machine / "cache", "prometheus", "promtool")
