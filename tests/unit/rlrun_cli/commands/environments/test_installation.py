"""`rlrun env install`: packages of S3 and of this machine in a Python of their own."""

import functools
import subprocess
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import uv

from tests.support.command_line import Rlrun
from tests.support.fake_s3 import InMemoryStore
from tests.unit.rlrun_cli.commands.environments.test_environments import wheel

FOLDER = "s3://b/p/environments/me/helper"


@pytest.fixture
def python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Python of an empty virtual environment, without an index."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    folder = tmp_path / "venv"
    subprocess.run([uv.find_uv_bin(), "venv", "--quiet", folder], check=True)
    return folder / "bin" / "python"


def installed(python: Path, module: str) -> str:
    command = [python, "-c", f"import {module}; print({module}.x)"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture
def pushed(s3: InMemoryStore, tmp_path: Path) -> InMemoryStore:
    for version, body in (("1.0", "import words\nx = words.x"), ("0.9", "x = 9")):
        file = wheel(tmp_path, "helper", body)
        s3.objects[f"{FOLDER}/{version}/{file.name}"] = file.read_bytes()
    words = wheel(tmp_path, "words", "x = 7")
    s3.objects[f"{FOLDER}/1.0/{words.name}"] = words.read_bytes()
    return s3


@pytest.mark.slow
@pytest.mark.parametrize(("reference", "value"), [("me/helper@0.9", "9"), ("me/Helper==0.9.0", "9")])
def test_a_pushed_version_is_installed(
    rlrun: Rlrun, pushed: InMemoryStore, python: Path, reference: str, value: str
) -> None:
    answer = rlrun("env", "install", reference, "--python", python)
    assert answer.code == 0, answer.err
    assert "Downloaded me/" in answer.err
    assert installed(python, "helper") == value


@pytest.mark.slow
def test_the_newest_version_brings_the_wheels_that_it_requires(
    rlrun: Rlrun, s3: InMemoryStore, tmp_path: Path, python: Path
) -> None:
    words = wheel(tmp_path, "words", "x = 7")
    package = wheel(tmp_path, "helper", "import words\nx = words.x", requires="words")
    for file in (words, package):
        s3.objects[f"{FOLDER}/1.0/{file.name}"] = file.read_bytes()
    answer = rlrun("env", "install", "me/helper", env={"VIRTUAL_ENV": str(python.parent.parent)})
    assert answer.code == 0, answer.err
    assert f"Installed into {python}" in answer.err
    assert installed(python, "helper") == "7"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: Path) -> Iterator[Path]:
    """An index with `words` 99.0, whose x is 99."""
    folder = tmp_path / "index"
    (folder / "words").mkdir(parents=True)
    wheel(folder / "words", "words", "x = 99", version="99.0")
    # Its lists of files are pages of links, as those of an index.
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(SimpleHTTPRequestHandler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    yield folder
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.slow
@pytest.mark.parametrize("requirement", ["words", "words>=0.5", "words @ {address}"])
def test_a_pushed_wheel_wins_over_a_newer_version_of_the_index(
    rlrun: Rlrun, s3: InMemoryStore, tmp_path: Path, python: Path, index: Path, requirement: str
) -> None:
    words = wheel(tmp_path, "words", "x = 7")
    address = (index / "words" / "words-99.0-py3-none-any.whl").as_uri()
    package = wheel(tmp_path, "helper", "import words\nx = words.x", requires=requirement.format(address=address))
    for file in (words, package):
        s3.objects[f"{FOLDER}/1.0/{file.name}"] = file.read_bytes()
    answer = rlrun("env", "install", "me/helper", "--python", python)
    assert answer.code == 0, answer.err
    assert installed(python, "helper") == "7"


@pytest.mark.slow
def test_a_pushed_wheel_of_another_platform_is_named_and_comes_from_the_index(
    rlrun: Rlrun, s3: InMemoryStore, tmp_path: Path, python: Path, index: Path
) -> None:
    words = wheel(tmp_path, "words", "x = 7", tag="cp39-cp39-win_amd64")
    package = wheel(tmp_path, "helper", "import words\nx = words.x", requires="words")
    for file in (words, package):
        s3.objects[f"{FOLDER}/1.0/{file.name}"] = file.read_bytes()
    answer = rlrun("env", "install", "me/helper", "--python", python)
    assert answer.code == 0, answer.err
    assert f"Warning: {words.name} does not fit" in answer.err
    assert installed(python, "helper") == "99"


def test_what_is_not_pushed_is_not_found(rlrun: Rlrun, pushed: InMemoryStore) -> None:
    answer = rlrun("env", "install", "me/helper@3.0")
    assert (answer.code, "select one of: 0.9, 1.0" in answer.err) == (1, True)
    assert "rlrun env push" in rlrun("env", "install", "me/other").err
    for wrong in ("helper", "me/helper/x", "me/.."):
        assert rlrun("env", "install", wrong).code == 2, wrong


@pytest.mark.slow
def test_a_failure_shows_what_uv_said(rlrun: Rlrun, pushed: InMemoryStore, tmp_path: Path) -> None:
    answer = rlrun("env", "install", "me/helper", "--python", tmp_path / "none")
    assert answer.code == 1
    assert "--python" in answer.err
    assert "none" in answer.err
