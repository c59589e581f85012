"""rlrun-server as a process, at a real API server and a real S3."""

import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import urllib3

from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server
from tests.support.source_tree import PYTHONPATH

START_SECONDS = 60.0


@contextmanager
def server_process(kubeconfig: Path, s3: S3Server, folder: Path, **settings: str) -> Iterator[str]:
    """Run the server until the end of the block, and yield its URL. `settings`: fields of ServerSettings."""
    (folder / "keys").mkdir()
    (folder / "keys" / "one").write_bytes(uuid.uuid4().bytes)
    with claimed_ports(2) as (port, probes):
        given = {
            "port": str(port),
            "metrics_port": str(probes),
            "keys": str(folder / "keys"),
            "credentials": str(folder / "none"),
            "kubeconfig": str(kubeconfig),
            "bucket": s3.bucket,
            **settings,
        }
        environment = {
            **os.environ,
            **{f"RLRUN_SERVER_{name.upper()}": value for name, value in given.items()},
            **s3.environment,
            "PYTHONPATH": PYTHONPATH,
        }
        log = folder / "server.log"
        with log.open("wb") as output:
            process = subprocess.Popen([sys.executable, "-m", "rlrun_server"], env=environment, stderr=output)
            try:
                _wait(f"http://127.0.0.1:{probes}/readyz", process, log)
                yield f"http://127.0.0.1:{port}"
            finally:
                process.kill()
                process.wait()


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_SECONDS
    while True:
        try:
            if urllib3.request("GET", url, retries=False, timeout=5).status == 200:
                return
        except urllib3.exceptions.HTTPError:
            pass
        if process.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"rlrun-server did not start: {log.read_text()[-3000:]}")
        time.sleep(0.1)
