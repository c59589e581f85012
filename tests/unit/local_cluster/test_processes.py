"""Daemons, certificates, archives and files: against real processes and files, in milliseconds."""

import json
import os
import subprocess
import tarfile
import time
from pathlib import Path

import pytest
import yaml
from cryptography import x509

from local_cluster import cleanup, files
from local_cluster.archives import BinaryImage
from local_cluster.daemons import Daemon, Supervisor, start_time
from local_cluster.errors import LocalClusterError
from local_cluster.paths import MARKER, Paths
from local_cluster.pki import Authority, write_kubeconfig
from local_cluster.shell import run


@pytest.fixture
def supervisor(tmp_path: Path) -> Supervisor:
    return Supervisor(tmp_path / "run", tmp_path / "logs")


def sleeper(seconds: str = "60") -> Daemon:
    return Daemon("sleeper", ("sleep", seconds), lambda: True)


def test_a_daemon_is_started_once_and_found_by_another_supervisor(supervisor: Supervisor) -> None:
    assert supervisor.start(sleeper()) is True
    pid = supervisor.pid("sleeper")
    assert supervisor.start(sleeper()) is False
    assert Supervisor(supervisor.run_dir, supervisor.log_dir).running() == {"sleeper": pid}
    assert supervisor.stop("sleeper") is True
    assert supervisor.running() == {}
    assert supervisor.stop("sleeper") is False


def test_a_daemon_with_other_arguments_is_replaced(supervisor: Supervisor) -> None:
    supervisor.start(sleeper("60"))
    first = supervisor.pid("sleeper")
    assert supervisor.start(sleeper("61")) is True
    assert supervisor.pid("sleeper") != first
    supervisor.stop("sleeper")


def test_a_failed_start_shows_the_log_and_the_next_step(supervisor: Supervisor) -> None:
    daemon = Daemon("broken", ("sh", "-c", "echo no such disk; exit 3"), lambda: False, "Buy a disk.")
    with pytest.raises(LocalClusterError, match=r"(?s)status 3.*no such disk.*Buy a disk"):
        supervisor.start(daemon)


def test_a_process_id_used_again_is_a_stranger(supervisor: Supervisor) -> None:
    own = start_time(os.getpid())
    assert own is not None
    supervisor.run_dir.mkdir()
    (supervisor.run_dir / "old.pid").write_text(json.dumps({"pid": os.getpid(), "start": own - 1}))
    assert supervisor.pid("old") is None
    (supervisor.run_dir / "old.pid").write_text("{damaged")
    assert supervisor.pid("old") is None


def test_a_zombie_does_not_run() -> None:
    child = subprocess.Popen(["true"])
    deadline = time.monotonic() + 60
    while start_time(child.pid) is not None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert start_time(child.pid) is None
    child.wait()


def test_certificates_verify_against_their_authority(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server", "kube-apiserver", addresses=["localhost", "10.96.0.1"])
    ca = x509.load_pem_x509_certificate(authority.pair.certificate.read_bytes())
    certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    certificate.verify_directly_issued_by(ca)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["localhost"]
    assert [str(address) for address in names.get_values_for_type(x509.IPAddress)] == ["10.96.0.1"]
    assert pair.key.stat().st_mode & 0o077 == 0
    again = Authority(tmp_path)
    assert again.issue("server", "ignored").certificate.read_bytes() == pair.certificate.read_bytes()
    x509.load_pem_x509_certificate(again.issue("second", "x").certificate.read_bytes()).verify_directly_issued_by(ca)


def test_a_kubeconfig_stands_alone_and_is_private(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "pki")
    file = tmp_path / "kubeconfig"
    write_kubeconfig(file, "https://127.0.0.1:1", authority, authority.issue("admin", "a", "system:masters"), "c")
    assert file.stat().st_mode & 0o077 == 0
    assert str(tmp_path) not in file.read_text()
    assert yaml.safe_load(file.read_text())["current-context"] == "c"


def test_an_unchanged_file_is_not_written(tmp_path: Path) -> None:
    file = files.write(tmp_path / "deep" / "file", "one", mode=0o600)
    before = file.stat()
    files.write(file, "one")
    assert file.stat().st_mtime_ns == before.st_mtime_ns
    assert file.stat().st_ino == before.st_ino
    files.write(file, "two")
    assert file.read_text() == "two"
    assert list(file.parent.iterdir()) == [file]


def test_an_image_is_named_after_its_content(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_bytes(b"\x7fELF one")
    archive = tmp_path / "tool.tar"
    reference = BinaryImage("tool", program).write(archive)
    with tarfile.open(archive) as tar:
        manifest = json.load(tar.extractfile("manifest.json") or pytest.fail("no manifest"))
        config = json.load(tar.extractfile(manifest[0]["Config"]) or pytest.fail("no config"))
        with tarfile.open(fileobj=tar.extractfile("layer.tar")) as layer:
            assert layer.getmember("tool").mode == 0o755
    assert manifest[0]["RepoTags"] == [reference]
    assert config["config"]["Entrypoint"] == ["/tool"]
    other = tmp_path / "other"
    other.write_bytes(b"\x7fELF two")
    assert BinaryImage("tool", other).reference != reference


def test_a_directory_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (state / "thesis.txt").touch()
    paths = Paths(state=state, cache=tmp_path / "cache")
    with pytest.raises(LocalClusterError, match="RLRUN_STATE"):
        cleanup.remove_state(paths)
    (state / MARKER).touch()
    cleanup.remove_state(paths)
    assert not state.exists()


def test_a_directory_with_a_mount_in_it_is_not_removed(tmp_path: Path) -> None:
    mountinfo = tmp_path / "mountinfo"
    directory = tmp_path / "images"
    directory.mkdir()
    mountinfo.write_text(f"1 1 0:1 / {directory}/mnt rw - tmpfs tmpfs rw\n")
    with pytest.raises(LocalClusterError, match="Still mounted"):
        cleanup.remove_tree(directory, mountinfo)
    assert directory.exists()


def test_a_failed_command_says_what_to_do() -> None:
    with pytest.raises(LocalClusterError, match=r"(?s)failed \(2\).*oh.*Try this"):
        run(["sh", "-c", "echo oh >&2; exit 2"], next_step="Try this.")
    with pytest.raises(LocalClusterError, match="not installed"):
        run(["no-such-program-here"])
