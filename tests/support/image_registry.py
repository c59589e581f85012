"""A real image registry on loopback: Debian's docker-registry, with its files in a folder of the test."""

import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from local_cluster.host.paths import paths
from local_cluster.tools.host_packages import program_from_debian
from tests.support.ports import claimed_ports

START_SECONDS = 20.0
CONFIGURATION = """\
version: 0.1
log: {{level: warn}}
storage:
  filesystem: {{rootdirectory: {folder}/blobs}}
  delete: {{enabled: true}}
http: {{addr: "{address}"}}
"""
CLIENT_CONFIGURATION = """\
[[registry]]
location = "{address}"
insecure = true
"""


@dataclass(frozen=True)
class ImageRegistry:
    """A running registry without TLS."""

    address: str
    folder: Path
    programs: Path
    """Folder with skopeo, which `make push` asks for digests beside buildah."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which buildah and skopeo use the registry without TLS: a home with their configuration."""
        return {"HOME": str(self.folder)}


@contextmanager
def image_registry(folder: Path) -> Iterator[ImageRegistry]:
    """Yield a registry that keeps its files in `folder`. Raises RuntimeError if it does not start."""
    server = program_from_debian(paths().cache, "docker-registry", "docker-registry")
    programs = program_from_debian(paths().cache, "skopeo", "skopeo").parent
    with claimed_ports(1) as (port,):
        found = ImageRegistry(f"127.0.0.1:{port}", folder, programs)
        (folder / "config.yml").write_text(CONFIGURATION.format(folder=folder, address=found.address))
        configuration = folder / ".config" / "containers" / "registries.conf"
        configuration.parent.mkdir(parents=True)
        configuration.write_text(CLIENT_CONFIGURATION.format(address=found.address))
        log = folder / "registry.log"
        with log.open("wb") as output:
            process = subprocess.Popen([server, "serve", str(folder / "config.yml")], stdout=output, stderr=output)
        try:
            _wait_for(f"http://{found.address}/v2/", process, log)
            yield found
        finally:
            process.kill()
            process.wait()


def _wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except (OSError, urllib.error.URLError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"docker-registry does not answer: {error}\n{log.read_text()}") from error
            time.sleep(0.1)
