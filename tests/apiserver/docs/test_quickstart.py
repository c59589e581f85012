"""docs/guides/quickstart.md on an API server that knows nothing of the project.

Real: helm and the chart, the command line, the operator, rlrun-server, S3. Played: the builder of images and pip, which
keep what they are asked, and nodes, so that the chart's hooks and `--wait` are left out and pods are the test's.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client, config
from typing_extensions import override

from local_cluster.control_plane.without_nodes import GARBAGE_COLLECTION, ControlPlane
from local_cluster.host.paths import paths
from local_cluster.tools.binaries import ensure_program
from tests.apiserver.docs.conftest import ROOT, World
from tests.apiserver.rlrun_operator.conftest import Bench, Orchestrators, make_home, write_settings
from tests.apiserver.rlrun_server.integration.test_process import wait_for
from tests.support.chat_endpoint import Endpoint, serving
from tests.support.guide import Runner, install_commands
from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server
from tests.support.source_tree import PYTHONPATH

TEAM = "team"
SYSTEM = "rlrun-system"
KEPT = '#!/bin/sh\necho "$(basename "$0") $*" >> {log}\n'
REGISTRY = f"[ $1 != buildx ] || echo '{json.dumps({'digest': 'sha256:' + '5' * 64})}'\n"
"""What docker answers about digests."""
HELM = """#!/bin/bash
for word; do shift; [ "$word" = --wait ] || set -- "$@" "$word"; done
case "$1" in install|uninstall) set -- "$@" --no-hooks ;; esac
exec {helm} "$@"
"""


@pytest.fixture
def control_plane() -> Iterator[ControlPlane]:
    """A cluster of the test's own, in which the chart's roles become parts of `edit`."""
    with ControlPlane(controllers=(*GARBAGE_COLLECTION, "clusterrole-aggregation-controller")) as started:
        yield started


@pytest.fixture
def api(control_plane: ControlPlane) -> client.ApiClient:
    return config.new_client_from_config(str(control_plane.kubeconfig))


@pytest.fixture
def s3_server(s3_server: S3Server) -> S3Server:
    """The S3 of all tests with a bucket of the test's own: the guide lists all public environments."""
    return s3_server.with_bucket(f"quickstart-{uuid.uuid4().hex[:8]}")


@contextmanager
def rlrun_server(control_plane: ControlPlane, s3: S3Server, folder: Path) -> Iterator[str]:
    """Run the server's process. Yields its URL."""
    (folder / "keys").mkdir()
    (folder / "keys" / "one").write_bytes(uuid.uuid4().bytes)
    with claimed_ports(2) as (port, probes):
        settings = {
            "PORT": port,
            "METRICS_PORT": probes,
            "KEYS": folder / "keys",
            "CREDENTIALS": folder / "none",
            "KUBECONFIG": control_plane.kubeconfig,
            "BUCKET": s3.bucket,
        }
        environment = {
            **os.environ,
            **{f"RLRUN_SERVER_{name}": str(value) for name, value in settings.items()},
            **s3.environment,
            "PYTHONPATH": PYTHONPATH,
        }
        process = subprocess.Popen([sys.executable, "-m", "rlrun_server"], env=environment)
        try:
            wait_for(f"http://127.0.0.1:{probes}/readyz", 200)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()
            process.wait()


def written(file: Path, text: str) -> None:
    file.write_text(text)
    file.chmod(0o755)


class Sums(Endpoint):
    """Model that adds two numbers, and is wrong every other time."""

    count = 0

    @override
    def reply(self, body: dict[str, Any]) -> str:
        self.count += 1
        first, second = re.findall(r"\d+", body["messages"][-1]["content"])[:2]
        return str(int(first) + int(second) + self.count % 2)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The repository, as links, in a folder that the guide may write to."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    (folder / "build").mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in ("build", ".git", "local_cluster"):
            (folder / entry.name).symlink_to(entry)
    # Copied, because it finds the repository by its own place.
    shutil.copytree(ROOT / "local_cluster", folder / "local_cluster", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


@pytest.mark.slow
def test_quickstart(
    api: client.ApiClient,
    control_plane: ControlPlane,
    s3_server: S3Server,
    orchestrators: Orchestrators,
    checkout: Path,
    tmp_path: Path,
) -> None:
    programs, log = tmp_path / "bin", tmp_path / "asked"
    environment = {
        "PATH": install_commands(programs, sys.executable, ensure_program("kubectl", paths())),
        "KUBECONFIG": str(tmp_path / "kubeconfig"),
        "HOME": str(tmp_path),
    }
    shutil.copy(control_plane.kubeconfig, tmp_path / "kubeconfig")
    written(programs / "pip", KEPT.format(log=log))
    written(programs / "docker", KEPT.format(log=log) + REGISTRY)
    written(programs / "helm", HELM.format(helm=ensure_program("helm", paths())))

    with ExitStack() as running:
        world: list[World] = []

        def platform() -> None:
            """What the pods of the chart do: operator and rlrun-server run, and the Deployment is ready."""
            home = make_home(api, s3_server)
            settings = write_settings(tmp_path / "settings.yaml", control_plane, s3_server, orchestrators, [home, TEAM])
            bench = Bench(api, TEAM, settings, tmp_path, s3_server, orchestrators)
            world.append(World(bench))
            bench.start_operator()
            running.callback(lambda: [process.kill() for process in bench.processes])
            apps = client.AppsV1Api(api)
            status = {"status": {"replicas": 1, "readyReplicas": 1}}
            apps.patch_namespaced_deployment_status("rlrun-operator", SYSTEM, status)
            environment["RLRUN_SERVER"] = running.enter_context(rlrun_server(control_plane, s3_server, tmp_path))

        def follows(*guides: str) -> None:
            """Run other guides here, where rlrun-server is a process of its own."""
            endpoint = running.enter_context(serving(Sums()))
            for guide in guides:
                folder = tmp_path / guide
                folder.mkdir()
                surroundings = {**environment, "MODEL_URL": endpoint.url, "MODEL": "m"}
                assert Runner(ROOT / "docs/guides" / guide, folder, surroundings).run() >= 1

        steps = {"platform": platform, "trains": lambda *words: world[0].trains(*words), "follows": follows}
        assert Runner(ROOT / "docs/guides/quickstart.md", checkout, environment, steps).run() >= 6

    asked = [line for line in log.read_text().splitlines() if not line.startswith("docker buildx")]
    assert [line.split()[:2] for line in asked] == [["docker", "build"]] * 3 + [["docker", "push"]] * 3 + [
        ["pip", "install"]
    ]
    images = yaml.safe_load((checkout / "build/images.yaml").read_text())["images"]
    pushed = [line.split()[2] for line in asked if line.startswith("docker push")]
    assert pushed == [
        f"registry.example.com/ml/rlrun-{name}:{images[name]['tag']}"
        for name in ("operator", "orchestrator", "trainer")
    ]
