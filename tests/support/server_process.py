"""rlrun-server as a process of its own, at a real API server and a real S3."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from tests.support.ports import claimed_ports
from tests.support.seaweedfs import S3Server
from tests.support.source_tree import PYTHONPATH

READY_SECONDS = 60


@contextmanager
def server_process(
    folder: Path, kubeconfig: Path, s3: S3Server, token: str | None = None, **settings: str
) -> Iterator[str]:
    """Yield the URL of a running server.

    `token` takes the place of the credentials in `kubeconfig`. `settings`: fields of ServerSettings.
    """
    folder.mkdir(parents=True, exist_ok=True)
    own = folder / "kubeconfig"
    found = yaml.safe_load(kubeconfig.read_text())
    own.write_text(yaml.safe_dump(found if token is None else with_token(found, token)))
    for name, files in {
        "keys": {"key": "a key of at least sixteen bytes"},
        "s3": {key: s3.environment[key] for key in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")},
    }.items():
        (folder / name).mkdir(exist_ok=True)
        for file, content in files.items():
            (folder / name / file).write_text(content)
    with claimed_ports(2) as (port, metrics_port):
        values = {
            "port": str(port),
            "metrics_port": str(metrics_port),
            "keys": str(folder / "keys"),
            "credentials": str(folder / "s3"),
            "kubeconfig": str(own),
            "bucket": s3.bucket,
            **settings,
        }
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": PYTHONPATH,
            "AWS_ENDPOINT_URL_S3": s3.endpoint,
            "AWS_DEFAULT_REGION": s3.environment["AWS_DEFAULT_REGION"],
            **{f"RLRUN_SERVER_{name.upper()}": value for name, value in values.items()},
        }
        log = folder / "server.log"
        with log.open("ab") as out:
            command = [sys.executable, "-m", "rlrun_server"]
            process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, cwd=folder)
        try:
            _wait(f"http://127.0.0.1:{values['metrics_port']}/readyz", process, log)
            yield f"http://127.0.0.1:{values['port']}"
        finally:
            process.terminate()
            process.wait(20)


def with_token(kubeconfig: dict[str, Any], token: str) -> dict[str, Any]:
    """Return a kubeconfig with this token as its only credential."""
    users = [{"name": user["name"], "user": {"token": token}} for user in kubeconfig["users"]]
    return {**kubeconfig, "users": users}


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            if httpx.get(url, trust_env=False).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"rlrun-server is not ready:\n{log.read_text()[-4000:]}")
