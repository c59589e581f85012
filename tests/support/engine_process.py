"""An engine as a process of its own: vLLM or the stub, with the arguments and variables that the operator gives it."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rlrun_operator.resources.models.model_caches import CACHE_DIR

from tests.support.ports import claimed_ports
from tests.support.source_tree import ROOT

STUB = (sys.executable, "-m", "tests.support.images.stub_engine")
VLLM = ("vllm", "serve")
READY_SECONDS = 300
"""A deadline for a process that never starts; vLLM takes half a minute on an idle core."""
HOST = "127.0.0.1"


@contextmanager
def engine_process(
    command: Sequence[str], arguments: Sequence[str], variables: Mapping[str, str], folder: Path
) -> Iterator[str]:
    """Yield the URL of a running engine. Its log, and the middleware that the operator installs, are in `folder`."""
    folder.mkdir(exist_ok=True)
    installer = [sys.executable, "-m", "rlrun_engine_access", str(folder)]
    packages = os.pathsep.join([str(ROOT / "orchestrator_image"), str(ROOT / "core")])
    subprocess.run(installer, env=os.environ | {"PYTHONPATH": packages}, check=True, stdout=subprocess.DEVNULL)
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
        "HF_HUB_OFFLINE": "1",
        # In a pod the caches are a volume. This process has no right to make a folder in the root.
        **{name: value.replace(CACHE_DIR, str(folder / "cache")) for name, value in variables.items()},
    }
    log = folder / "engine.log"
    with claimed_ports(1) as (port,), log.open("wb") as out:
        process = subprocess.Popen(
            [*command, *arguments, "--host", HOST, "--port", str(port)],
            cwd=folder,
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
        try:
            _wait(f"http://{HOST}:{port}/health", process, log)
            yield f"http://{HOST}:{port}"
        finally:
            process.terminate()
            process.wait(60)


def _wait(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"{url} answered {error.code}") from error
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"the engine is not ready:\n{log.read_text()[-4000:]}")
