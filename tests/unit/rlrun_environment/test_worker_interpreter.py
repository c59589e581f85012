"""Workers have the interpreter of the package's generation, and the verifiers that the package brings."""

import asyncio
import json
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from aiohttp.test_utils import TestServer
from rlrun.protocol.environment import EnvironmentConfig
from rlrun_environment.package_installer import FIRST_ON_PATH, PackageError, install
from rlrun_environment.server import EnvironmentServer
from rlrun_environment.settings import EnvironmentProcessSettings
from rlrun_environment.worker_interpreter import choose_interpreter
from rlrun_environment.worker_pool import Interpreter

from tests.support.source_tree import PYTHONPATH

ENVIRONMENT = "def load_environment(): ..."
TASKSET = "__all__ = ['Words']\nclass Words: ..."


def wheel(folder: Path, name: str, version: str, code: str, *requires: str) -> Path:
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{module}/__init__.py": code,
        f"{info}/METADATA": metadata + "".join(f"Requires-Dist: {one}\n" for one in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{info}/RECORD": "".join(f"{file},,\n" for file in files)}.items():
            archive.writestr(file, text)
    return path


@pytest.fixture
def interpreters(tmp_path: Path) -> Path:
    """Interpreters that tell their generation to what they run, in a variable."""
    for generation in ("v0", "v1"):
        python = tmp_path / "interpreters" / generation / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nGENERATION={generation} exec {sys.executable} "$@"\n')
        python.chmod(0o755)
    return tmp_path / "interpreters"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "requires", "pushed", "expected"),
    [
        (ENVIRONMENT, ["verifiers>=0.1.5"], None, "v0"),
        (ENVIRONMENT, [], None, "v0"),
        (TASKSET, ["verifiers>=0.3"], None, "v1"),
        (ENVIRONMENT, ["verifiers>=0.4"], None, "v1"),
        (TASKSET, ["verifiers>=0.3"], "0.3.0", "v0"),
        (ENVIRONMENT, ["verifiers"], "0.4.1", "v1"),
    ],
)
async def test_the_interpreter_of_an_installed_package(
    tmp_path: Path, interpreters: Path, code: str, requires: list[str], pushed: str | None, expected: str
) -> None:
    wheels = [wheel(tmp_path, "my-env", "1.0", code, *requires)]
    wheels += [wheel(tmp_path, "verifiers", pushed, "")] if pushed else []
    folder = tmp_path / "installed"
    await install(wheels, folder)
    chosen = choose_interpreter("my-env", folder, interpreters)
    first = folder / FIRST_ON_PATH if pushed else None
    assert chosen == Interpreter(str(interpreters / expected / "bin" / "python"), first)
    assert not (folder / "verifiers").exists()
    assert choose_interpreter("my-env", folder, tmp_path / "nowhere") == Interpreter(sys.executable, first)


@pytest.mark.slow
async def test_a_version_without_a_runner_is_refused(tmp_path: Path, interpreters: Path) -> None:
    wheels = [wheel(tmp_path, "my-env", "1.0", ENVIRONMENT), wheel(tmp_path, "verifiers", "0.5.0", "")]
    await install(wheels, tmp_path / "installed")
    with pytest.raises(PackageError) as refusal:
        choose_interpreter("my-env", tmp_path / "installed", interpreters)
    assert refusal.value.problem.reason == "EnvironmentInstallFailed"
    assert "my-env cannot be run: the package brings verifiers 0.5.0" in refusal.value.problem.message
    assert ">=0.4" in refusal.value.problem.message


@pytest.mark.slow
async def test_a_package_that_exports_a_harness_only_is_refused(tmp_path: Path, interpreters: Path) -> None:
    code = "class Mine(vf.Harness): ...\n__all__ = ['Mine']"
    await install([wheel(tmp_path, "my-env", "1.0", code, "verifiers>=0.4")], tmp_path / "installed")
    with pytest.raises(PackageError) as refusal:
        choose_interpreter("my-env", tmp_path / "installed", interpreters)
    assert "my-env exports a harness of verifiers.v1 and no taskset" in refusal.value.problem.message


PROBE = """
import json, os, pathlib, sys

def load_environment():
    import verifiers
    found = {"generation": os.environ.get("GENERATION"), "verifiers": getattr(verifiers, "own", None)}
    pathlib.Path(OUT).write_text(json.dumps(found))
    return Words()

class Words:
    dataset = [{"prompt": "abc"}]

    async def rollout(self, example, **options):
        return 1.0
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("requires", "pushed", "found"),
    [
        ("verifiers>=0.4", None, {"generation": "v1", "verifiers": None}),
        ("verifiers", "0.3.0", {"generation": "v0", "verifiers": "0.3.0"}),
    ],
)
async def test_the_worker_is_run_by_it(
    tmp_path: Path, interpreters: Path, monkeypatch: pytest.MonkeyPatch, requires: str, pushed: str | None, found: Any
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    out = tmp_path / "out.json"
    wheels = [wheel(tmp_path, "my-env", "1.0", f"OUT = {str(out)!r}\n{PROBE}", requires)]
    if pushed:
        code = f"own = {pushed!r}\nclass Environment: ..."
        wheels.append(wheel(tmp_path, "verifiers", pushed, code))
    await install(wheels, tmp_path / "installed")
    settings = EnvironmentProcessSettings(dir=tmp_path / "installed", interpreters=interpreters)
    # Without packages URL nothing is fetched: the package is installed already.
    server = EnvironmentServer(EnvironmentConfig(id="me/my-env"), settings)
    web = TestServer(server.app())
    await web.start_server()
    try:
        await server.prepare()
        async with asyncio.timeout(120):
            while not server.pool.ready:
                assert server.pool.problem is None
                await asyncio.sleep(0.1)
    finally:
        await web.close()
        await server.pool.close()
    assert json.loads(out.read_text()) == found
