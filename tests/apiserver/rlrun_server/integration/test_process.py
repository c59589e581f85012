"""rlrun-server as a process: it starts, answers users and pods, and ends on SIGTERM."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3
from kubernetes import client

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.apiserver.rlrun_server.test_users import Accounts
from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server
from tests.support.source_tree import PYTHONPATH

SECONDS = 60.0


def wait_for(url: str, status: int, headers: dict[str, str] | None = None) -> urllib3.BaseHTTPResponse:
    """Return the first response with this status."""
    end = time.monotonic() + SECONDS
    while True:
        try:
            answer = urllib3.request("GET", url, headers=headers or {}, retries=False, timeout=5)
            if answer.status == status:
                return answer
            found = f"{answer.status}: {answer.data[:500]!r}"
        except urllib3.exceptions.HTTPError as error:
            found = str(error)
        assert time.monotonic() < end, f"{url}: {found}"
        time.sleep(0.1)


@pytest.fixture
def ports() -> Iterator[list[int]]:
    with claimed_ports(2) as found:
        yield found


@pytest.mark.slow
def test_the_process_serves_and_ends(
    api: client.ApiClient,
    control_plane: ControlPlane,
    namespace: str,
    s3_server: S3Server,
    tmp_path: Path,
    ports: list[int],
) -> None:
    plain, probes = ports
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "one").write_bytes(uuid.uuid4().bytes)
    settings = {
        "PORT": str(plain),
        "METRICS_PORT": str(probes),
        "KEYS": str(tmp_path / "keys"),
        "CREDENTIALS": str(tmp_path / "none"),
        "KUBECONFIG": str(control_plane.kubeconfig),
        "BUCKET": s3_server.bucket,
    }
    environment = {
        **os.environ,
        **{f"RLRUN_SERVER_{name}": value for name, value in settings.items()},
        **s3_server.environment,
        "AWS_ENDPOINT_URL_S3": s3_server.endpoint,
        "PYTHONPATH": PYTHONPATH,
    }
    process = subprocess.Popen([sys.executable, "-m", "rlrun_server"], env=environment)
    try:
        assert wait_for(f"http://127.0.0.1:{probes}/readyz", 200).data == b"ok\n"
        assert b"rlrun_server_sign_seconds" in wait_for(f"http://127.0.0.1:{probes}/metrics", 200).data
        accounts = Accounts(api)
        user = {"Authorization": f"Bearer {accounts.make(namespace, 'ann', 'cluster-admin')}"}
        base = f"http://127.0.0.1:{plain}/rlrun/v1"
        assert wait_for(f"{base}/whoami", 200, user).json()["name"].endswith(":ann")
        # 503 until the objects are listed.
        assert wait_for(f"{base}/namespaces/{namespace}/runs", 200, user).json()["total"] == 0
        metrics = f"{base}/namespaces/{namespace}/runs/{uuid.uuid4()}/metrics"
        assert wait_for(metrics, 404, user).json()["reason"] == "ObjectNotFound", "S3 has answered that there are none"
        assert wait_for(f"{base}/storage", 200, user).json()["bucket"] == s3_server.bucket
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
    finally:
        process.kill()
        process.wait()
