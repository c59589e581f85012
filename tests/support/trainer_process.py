"""A trainer as a process of its own."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.source_tree import PYTHONPATH

START_SECONDS = 180


def start(
    module: str,
    model_dir: Path,
    port: int,
    environment: Mapping[str, str],
    arguments: Sequence[str] = (),
    launcher: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """Start `python -m module`, or `python` with the launcher's words before it. Errors can be read from stderr."""
    command = [sys.executable, *launcher, "-m", module, "--model-dir", str(model_dir), "--port", str(port)]
    return subprocess.Popen(
        [*command, *arguments],
        env=os.environ | {"PYTHONPATH": PYTHONPATH, "RLRUN_THREADS": "1"} | dict(environment),
        stderr=subprocess.PIPE,
        text=True,
    )


def call(port: int, method: str, path: str, body: str | bytes = b"", token: str = "") -> tuple[int, str]:
    """Make a request; return status and body."""
    status, content = call_bytes(port, method, path, body, token)
    return status, content.decode()


def call_bytes(port: int, method: str, path: str, body: str | bytes = b"", token: str = "") -> tuple[int, bytes]:
    """Make a request; return status and body, which need not be text."""
    data = (body.encode() if isinstance(body, str) else body) or None
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data=data, method=method)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


@contextmanager
def ready(process: subprocess.Popen[str], port: int) -> Iterator[subprocess.Popen[str]]:
    """Wait until the process is ready, and kill it at the end."""
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            assert process.poll() is None
            assert time.monotonic() < deadline
            try:
                if call(port, "GET", "/readyz")[0] == 200:
                    break
            except urllib.error.URLError:
                pass
            time.sleep(0.2)
        yield process
    finally:
        process.kill()
        process.wait(10)
