"""rlrun-server as a process: it starts, answers users and pods, and ends on SIGTERM."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import urllib3
from kubernetes import client

from local_cluster.control_plane.without_nodes import ControlPlane
from tests.apiserver.rlrun_server.test_users import Accounts
from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server
from tests.support.signed_s3 import AWS, signed_s3
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


@contextmanager
def server_process(
    folder: Path, control_plane: ControlPlane, s3: S3Server, plain: int, probes: int
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start rlrun-server, and kill it if it is still there."""
    (folder / "keys").mkdir()
    (folder / "keys" / "one").write_bytes(uuid.uuid4().bytes)
    settings = {
        "PORT": str(plain),
        "METRICS_PORT": str(probes),
        "KEYS": str(folder / "keys"),
        "CREDENTIALS": str(folder / "none"),
        "KUBECONFIG": str(control_plane.kubeconfig),
        "BUCKET": s3.bucket,
    }
    environment = {
        **os.environ,
        **{f"RLRUN_SERVER_{name}": value for name, value in settings.items()},
        **s3.environment,
        "AWS_ENDPOINT_URL_S3": s3.endpoint,
        "PYTHONPATH": PYTHONPATH,
    }
    process = subprocess.Popen([sys.executable, "-m", "rlrun_server"], env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_the_process_is_ready_with_a_first_result_of_the_test_of_s3(
    control_plane: ControlPlane, tmp_path: Path, ports: list[int]
) -> None:
    plain, probes = ports
    with signed_s3(AWS) as s3:
        s3.away = True
        with server_process(tmp_path, control_plane, s3.server, plain, probes):
            wait_for(f"http://127.0.0.1:{probes}/healthz", 200)
            # The message continues with the reason, which changes once the first test has ended.
            for path in ("readyz", "storez"):
                waiting = wait_for(f"http://127.0.0.1:{probes}/{path}", 503)
                assert b"does not know yet whether the S3 server is safe" in waiting.data
            s3.away = False
            wait_for(f"http://127.0.0.1:{probes}/readyz", 200)
            # Ready by the result, not by the deadline.
            metrics = wait_for(f"http://127.0.0.1:{probes}/metrics", 200).data
            assert b'rlrun_server_storage_signing{method="headers"} 1.0' in metrics
            assert wait_for(f"http://127.0.0.1:{probes}/storez", 200).data == b"ok\n"


@pytest.mark.slow
def test_users_and_helm_test_learn_that_the_s3_server_lacks_conditional_writes(
    api: client.ApiClient, control_plane: ControlPlane, namespace: str, tmp_path: Path, ports: list[int]
) -> None:
    plain, probes = ports
    with (
        signed_s3(replace(AWS, has_conditions=False)) as s3,
        server_process(tmp_path, control_plane, s3.server, plain, probes),
    ):
        wait_for(f"http://127.0.0.1:{probes}/readyz", 200)
        told = wait_for(f"http://127.0.0.1:{probes}/storez", 503).data.decode()
        assert "does not implement If-None-Match" in told
        user = {"Authorization": f"Bearer {Accounts(api).make(namespace, 'ann', 'cluster-admin')}"}
        assert wait_for(f"http://127.0.0.1:{plain}/rlrun/v1/storage", 200, user).json()["problem"] == told
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "rlrun.installation.checks",
                "readyz",
                f"http://127.0.0.1:{probes}/readyz",
                f"http://127.0.0.1:{probes}/storez",
            ],
            env={**os.environ, "PYTHONPATH": PYTHONPATH, "CHECK_SECONDS": "0.1"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert told in done.stderr


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
    with server_process(tmp_path, control_plane, s3_server, plain, probes) as process:
        assert wait_for(f"http://127.0.0.1:{probes}/readyz", 200).data == b"ok\n"
        shown = wait_for(f"http://127.0.0.1:{probes}/metrics", 200).data
        assert b"rlrun_server_sign_seconds" in shown
        assert b"rlrun_server_connections_limit 1000.0" in shown
        assert b'rlrun_server_connections{state="busy"} 0.0' in shown
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
