"""The SDK `tinker` and the recipes of `tinker-cookbook`, unmodified from PyPI, in the image of the trainer.

The image has torch, transformers, peft and an interpreter. All other packages are installed once into the cache of the
local cluster, by the image's pip, in the versions and with the hashes of `tinker_clients/packages.txt`. The recipes are
run from their source archives, `tinker_clients/recipes-*.txt`, because their own tests are in no wheel. `--no-deps`
ignores that version 0.6.1 requires a tml-renderers that PyPI lacks, and 0.5.8 an older transformers than the image's.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from local_cluster.host.paths import paths
from local_cluster.images.run import MOUNTED_AT
from tests.support.source_tree import ROOT

PINS = Path(__file__).parent / "tinker_clients"
IMAGE = "trainer"
INSTALLED_AT, HOME = "/client", "/home-of-client"
RECIPES, NEWEST_RECIPES = "0.5.8", "0.6.1"
"""Versions of the cookbook: the newest whose `math_rl` uses a loss with a public formula, and the newest."""
TEST_TOOLS_AT = "/opt/test-tools"
INSTALL_SECONDS = 900
COMMAND_SECONDS = 600
TOOLS = {
    # The tests of the recipes call `uv run python -m RECIPE`.
    "uv": '#!/bin/sh\nshift; exec "$@"\n',
    # Recipes ask for the state of their checkout. There is none.
    "git": "#!/bin/sh\nexit 128\n",
}
"""Programs that the image lacks."""


@dataclass(frozen=True)
class TinkerClient:
    """Programs of one user: one server, one key, and a folder that all of them see as HOME."""

    url: str
    key: str
    folder: Path
    installed: Path

    recipes: str = RECIPES
    """Version of the cookbook."""

    def start(self, *command: str, **variables: str) -> "subprocess.Popen[str]":
        """Start a command in a container whose working directory is the source archive of the recipes."""
        environment = {
            "PATH": f"{INSTALLED_AT}/tools:/opt/venv/bin:/usr/local/bin:/usr/bin:/bin",
            "PYTHONPATH": f"{INSTALLED_AT}/packages:{TEST_TOOLS_AT}",
            "HOME": HOME,
            "HF_HOME": f"{HOME}/huggingface",
            "HF_HUB_OFFLINE": "1",
            "WANDB_MODE": "disabled",
            "OMP_NUM_THREADS": "1",
            "NO_PROXY": "*",
            "TINKER_BASE_URL": self.url,
            "TINKER_API_KEY": f"tml-{self.key}",
            "TINKER_TELEMETRY": "0",
            **variables,
        }
        # The container ends with its command, also if this process is killed.
        limited = ("timeout", "--kill-after=10", str(COMMAND_SECONDS), *command)
        argv = container(["env", f"--chdir={INSTALLED_AT}/{self.recipes}", *limited], environment, {**self._mounts})
        return subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def run(self, *command: str, code: int = 0, **variables: str) -> str:
        """Run a command that ends with this code, and return what it prints."""
        return self.end(self.start(*command, **variables), code)

    def end(self, process: "subprocess.Popen[str]", code: int = 0) -> str:
        """Wait for a command that ends with this code, and return what it prints from now on."""
        printed, _ = process.communicate(timeout=COMMAND_SECONDS + 60)
        # Without the command, which has the key.
        assert process.returncode == code, f"exit status {process.returncode}\n{printed[-20_000:]}"
        return printed

    @property
    def _mounts(self) -> dict[Path, str]:
        return {self.installed: f"{INSTALLED_AT}:ro", self.folder: HOME}


def tinker_client(url: str, key: str, folder: Path) -> TinkerClient:
    """Return the client of a user. Its packages are installed if they are not yet there."""
    folder.mkdir(parents=True, exist_ok=True)
    folder.chmod(0o777)  # the image's user is another one
    return TinkerClient(url, key, folder, install())


def install() -> Path:
    """Return the folder with the packages and the source archive, which is made if it is not yet there."""
    archives = {version: PINS / f"recipes-{version}.txt" for version in (RECIPES, NEWEST_RECIPES)}
    pins = [PINS / "packages.txt", *archives.values()]
    parts = [*(file.read_bytes() for file in pins), *(text.encode() for text in TOOLS.values())]
    digest = hashlib.sha256(b"\0".join(parts)).hexdigest()[:12]
    place = paths().cache / "tinker-clients" / digest
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / ".complete").exists():
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            place.chmod(0o777)
            for file in pins:
                shutil.copy(file, place)
            checked = ["--no-deps", "--require-hashes", "--quiet"]
            wheels = ["--only-binary", ":all:", "-r", f"{INSTALLED_AT}/packages.txt"]
            _pip(place, "install", *checked, *wheels, "--target", f"{INSTALLED_AT}/packages")
            for version, file in archives.items():
                source = ["--no-binary", "tinker-cookbook", "-r", f"{INSTALLED_AT}/{file.name}"]
                _pip(place, "download", *checked, *source, "--dest", INSTALLED_AT)
                _unpack(place, version)
            (place / "tools").mkdir()
            for name, text in TOOLS.items():
                (place / "tools" / name).write_text(text)
                (place / "tools" / name).chmod(0o755)
            (place / ".complete").touch()
    return place


def container(command: Sequence[str], environment: Mapping[str, str], mounts: Mapping[Path, str]) -> list[str]:
    """Return the argv that runs a command in a temporary container in the network of this machine."""
    options = [option for name, value in environment.items() for option in ("--env", f"{name}={value}")]
    options += [option for source, target in mounts.items() for option in ("--volume", f"{source}:{target}")]
    return [sys.executable, "-m", "local_cluster.images", "run", *options, IMAGE, "--", *command]


def script(path: Path) -> str:
    """Return the path in the container of a file of this project."""
    return f"{MOUNTED_AT}/{path.relative_to(ROOT)}"


def _pip(place: Path, *words: str) -> None:
    variables = {"HOME": "/tmp", "PYTHONPATH": ""}
    argv = container(["pip", *words], variables, {place: INSTALLED_AT})
    subprocess.run(argv, cwd=ROOT, check=True, timeout=INSTALL_SECONDS, env=dict(os.environ))


def _unpack(place: Path, version: str) -> None:
    (archive,) = place.glob("*.tar.gz")
    with tarfile.open(archive) as file:
        file.extractall(place, filter="data")
    (place / archive.name.removesuffix(".tar.gz")).rename(place / version)
    archive.unlink()
