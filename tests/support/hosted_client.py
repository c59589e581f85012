"""The command-line clients of the hosted service, unmodified from PyPI, each in a virtual environment of its own.

They are installed once into the cache of the local cluster, in the versions that `hosted_clients/*.txt` pins, with
the hashes of the files for CPython 3.11 to 3.13 on x86-64 Linux.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_cluster.host.paths import paths

VERSIONS = ("0.6.0", "0.12.0", "0.18.0")
DEDICATED = "0.18.0"
"""Version that starts dedicated runs only, from files of prime-rl, and deploys no adapters."""
REQUIREMENTS = Path(__file__).parent / "hosted_clients"
INSTALL_SECONDS = 900
COMMAND_SECONDS = 240
BUILDER = """#!/bin/sh
# Stands for `uv build`: the clients build wheels with it, here without fetching the build backend.
exec {python} -m build --wheel --no-isolation --outdir dist
"""


@dataclass(frozen=True)
class HostedClient:
    """A client that talks to one server with one key."""

    version: str
    program: Path
    folder: Path
    """Home of its user, and where it works."""
    environment: dict[str, str]

    @property
    def is_dedicated(self) -> bool:
        """True if the client starts dedicated runs only."""
        return self.version == DEDICATED

    def create(self, config: str, variable: str = "") -> str:
        """Start the run of a configuration in this client's form, with a variable NAME=VALUE, and return its id."""
        (self.folder / "rl.toml").write_text(config)
        given = ["-e", variable] if variable else []
        answer = self.read("train", "run", "rl.toml", "-y", *given, "-o", "json")["run"]
        assert not variable or variable.partition("=")[2] not in str(answer).replace("secrets", "")
        return str(answer["runId" if self.is_dedicated else "id"])

    def start(self, *words: str, **variables: str) -> "subprocess.Popen[str]":
        """Start a command, which SIGINT ends also where these tests run in a shell's background and ignore it."""
        return subprocess.Popen(
            ["env", "--default-signal=INT", str(self.program), *words],
            env={**self.environment, **variables},
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *words: str, code: int = 0, **variables: str) -> str:
        """Run a command that ends with this code, and return what it prints."""
        return self.end(self.start(*words, **variables), code)

    def end(self, process: "subprocess.Popen[str]", code: int = 0) -> str:
        """Wait for a command that ends with this code, and return what it prints."""
        try:
            printed, _ = process.communicate(timeout=COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        assert process.returncode == code, f"prime {self.version} {process.args!r}: {process.returncode}\n{printed}"
        assert "Traceback" not in printed, printed
        return printed

    def read(self, *words: str) -> Any:
        """Run a command and return the JSON that it prints, after what it says to people."""
        printed = self.run(*words)
        start = min((at for at in (printed.find("\n{"), printed.find("{")) if at >= 0), default=-1)
        assert start >= 0, printed
        return json.loads(printed[start:])


def hosted_client(version: str, url: str, key: str, folder: Path) -> HostedClient:
    """Return a client of this version, which is installed if it is not yet there."""
    folder.mkdir(parents=True, exist_ok=True)
    tools = folder / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "uv").write_text(BUILDER.format(python=sys.executable))
    (tools / "uv").chmod(0o755)
    environment = {
        "PATH": f"{tools}:/usr/bin:/bin",
        "HOME": str(folder),
        "PRIME_API_BASE_URL": url,
        "PRIME_API_KEY": key,
        "PRIME_DISABLE_VERSION_CHECK": "1",
        "NO_PROXY": "*",
        "NO_COLOR": "1",
        "COLUMNS": "240",
    }
    return HostedClient(version, install(version) / "bin/prime", folder, environment)


def install(version: str) -> Path:
    """Return the virtual environment of a version, which is made if it is not yet there."""
    requirements = REQUIREMENTS / f"prime-{version}.txt"
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    place = paths().cache / "hosted-clients" / f"prime-{version}-{digest}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / ".complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            venv.create(place, with_pip=True, symlinks=True)
            command = [
                str(place / "bin/pip"),
                "install",
                "--quiet",
                "--no-deps",
                "--require-hashes",
                "-r",
                str(requirements),
            ]
            subprocess.run(command, check=True, timeout=INSTALL_SECONDS, env=dict(os.environ))
            (place / ".complete").touch()
    return place
