import io
import zipfile
from pathlib import Path

import pytest
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import AccessDenied
from rlrun_cli.commands.environments.environments import has_bundle
from rlrun_cli.inputs.wheel_builder import content_digest, package_owner, read_wheel
from rlrun_cli.terminal.errors import CliError

from tests.support.command_line import Rlrun
from tests.support.fake_s3 import InMemoryStore

PYPROJECT = """
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "Reverse_Text"
requires-python = ">=3.11"
version = "0.1.0"
dependencies = ["verifiers>=0.1"]
[tool.hatch.build.targets.wheel]
include = ["reverse_text.py"]
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "reverse"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(PYPROJECT)
    (folder / "reverse_text.py").write_text("def load_environment():\n    return 1\n")
    return folder


def wheel(
    path: Path,
    name: str = "helper",
    body: str = "x = 1",
    date: int = 1980,
    requires: str = "",
    version: str = "1.0",
    tag: str = "py3-none-any",
) -> Path:
    file = path / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(zipfile.ZipInfo(f"{name}.py", (date, 1, 1, 0, 0, 0)), body)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        if requires:
            metadata += f"Requires-Dist: {requires}\n"
        archive.writestr(f"{name}-{version}.dist-info/METADATA", metadata)
        archive.writestr(f"{name}-{version}.dist-info/WHEEL", f"Wheel-Version: 1.0\nTag: {tag}\n")
        archive.writestr(f"{name}-{version}.dist-info/RECORD", f"{name}.py,sha256=x,{date}\n")
    return file


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only index of pip: a folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def require(project: Path, *requirements: str) -> None:
    """Let the project require these packages too."""
    listed = ", ".join(f'"{text}"' for text in ("verifiers>=0.1", *requirements))
    (project / "pyproject.toml").write_text(PYPROJECT.replace('"verifiers>=0.1"', listed))


@pytest.mark.slow
def test_a_real_wheel_is_built_and_pushed(rlrun: Rlrun, s3: InMemoryStore, project: Path) -> None:
    answer = rlrun("env", "push", project, "--owner", "me")
    assert answer.code == 0, answer.err
    assert answer.out == "me/reverse-text\n"
    ((key, data),) = s3.objects.items()
    assert key == "s3://b/p/environments/me/reverse-text/0.1.0/reverse_text-0.1.0-py3-none-any.whl"
    assert "reverse_text.py" in zipfile.ZipFile(io.BytesIO(data)).namelist()
    assert "verifiers" not in answer.err


@pytest.mark.slow
def test_wheels_that_the_image_lacks_are_pushed(rlrun: Rlrun, s3: InMemoryStore, project: Path, index: Path) -> None:
    require(project, "nltk>=1")
    arguments = ("env", "push", project, "--owner", "me")
    nltk = wheel(index, "nltk")
    answer = rlrun(*arguments)
    assert answer.code == 0, answer.err
    assert [key.rpartition("/")[2] for key in s3.objects] == [nltk.name, "reverse_text-0.1.0-py3-none-any.whl"]
    assert f"Adding nltk 1.0: {nltk.name}" in answer.err
    assert "sha256:" in answer.err
    # A version keeps its wheels, whatever the index has later.
    before = dict(s3.objects)
    nltk.unlink()
    answer = rlrun(*arguments)
    assert "Nothing changed" in answer.err
    assert s3.objects == before
    (project / "reverse_text.py").write_text("def load_environment():\n    return 2\n")
    assert "nltk was not found" in " ".join(rlrun(*arguments).err.split())


def test_wheels_for_extras_of_an_image_package_are_not_resolved_again(tmp_path: Path, s3: InMemoryStore) -> None:
    folder = S3Uri("b", "p/environments/me/env/1.0")
    environment = read_wheel(wheel(tmp_path, "env", requires="datasets[audio]"))
    s3.put_bytes(folder / environment.file, environment.data)
    assert not has_bundle(s3, folder, [environment]), "may have been pushed with --no-deps"
    added = wheel(tmp_path, "soundfile")
    s3.put_bytes(folder / added.name, added.read_bytes())
    assert has_bundle(s3, folder, [environment])
    added = wheel(tmp_path, "helper", requires="cffi_of_another_index")
    s3.put_bytes(folder / added.name, added.read_bytes())
    assert not has_bundle(s3, folder, [environment]), "lacks a wheel that a stored one requires"


@pytest.mark.slow
def test_nothing_is_pushed_without_a_wheel_of_a_requirement(
    rlrun: Rlrun, s3: InMemoryStore, project: Path, index: Path
) -> None:
    require(project, "nltk>=1")
    answer = rlrun("env", "push", project, "--owner", "me")
    assert (answer.code, s3.objects) == (1, {})
    assert "nltk" in answer.err
    answer = rlrun("env", "push", project, "--owner", "me", "--no-deps")
    assert (answer.code, len(s3.objects)) == (0, 1)
    assert "the environment image must contain nltk" in answer.err, "requirements without a wheel are named"
    # What was pushed without its requirements is not complete.
    wheel(index, "nltk")
    assert "already contains different files" in rlrun("env", "push", project, "--owner", "me").err
    assert rlrun("env", "push", project, "--owner", "me", "--force").code == 0
    assert len(s3.objects) == 2


@pytest.mark.slow
def test_a_package_that_is_too_large_is_not_pushed(
    rlrun: Rlrun, s3: InMemoryStore, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rlrun_cli.inputs.bundle.dependency_bundle.MAX_PACKAGE_BYTES", 100)
    answer = rlrun("env", "push", project, "--owner", "me", "--no-deps")
    assert (answer.code, s3.objects) == (1, {})
    assert "reverse_text-0.1.0-py3-none-any.whl: " in answer.err


@pytest.mark.slow
def test_the_owner_defaults_to_pyproject(rlrun: Rlrun, s3: InMemoryStore, project: Path) -> None:
    (project / "pyproject.toml").write_text(PYPROJECT + '[tool.rlrun]\nowner = "team"\n')
    answer = rlrun("env", "push", project)
    assert answer.out == "team/reverse-text\n"
    assert next(iter(s3.objects)).startswith("s3://b/p/environments/team/")


@pytest.mark.slow
def test_a_version_is_written_once(rlrun: Rlrun, s3: InMemoryStore, project: Path) -> None:
    arguments = ("env", "push", project, "--owner", "me")
    rlrun(*arguments)
    before = dict(s3.objects)
    same = rlrun(*arguments)
    assert same.code == 0
    assert "Nothing changed" in same.err
    (project / "reverse_text.py").write_text("def load_environment():\n    return 2\n")
    other = rlrun(*arguments)
    assert other.code == 1
    assert "--force" in other.err
    assert s3.objects == before
    assert rlrun(*arguments, "--force").code == 0
    assert s3.objects != before


@pytest.mark.slow
def test_a_push_that_was_cut_off_is_completed(rlrun: Rlrun, s3: InMemoryStore, project: Path, tmp_path: Path) -> None:
    extra = wheel(tmp_path, "nltk")
    arguments = ("env", "push", project, "--owner", "me", "--include", extra)
    rlrun(*arguments)
    package = next(key for key in s3.objects if "reverse_text-" in key)
    del s3.objects[package]
    answer = rlrun(*arguments)
    assert (answer.code, len(s3.objects)) == (0, 2), answer.err
    # A complete version gets no further wheel.
    del s3.objects[next(key for key in s3.objects if key != package)]
    assert "already contains different files" in rlrun(*arguments).err


@pytest.mark.slow
def test_included_wheels_are_pushed(rlrun: Rlrun, s3: InMemoryStore, project: Path, tmp_path: Path) -> None:
    require(project, "nltk>=1")
    extra = wheel(tmp_path, "nltk")
    answer = rlrun("env", "push", project, "--owner", "me", "--include", extra)
    assert answer.code == 0
    assert len(s3.objects) == 2
    assert "nltk" not in answer.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--owner"),
        (["--owner", "Me/You"], "is not a valid owner"),
    ],
)
def test_a_missing_option_is_named(rlrun: Rlrun, project: Path, arguments: list[str], message: str) -> None:
    answer = rlrun("env", "push", project, *arguments)
    assert answer.code == 2
    assert message in answer.err


def test_a_folder_without_pyproject_is_rejected(rlrun: Rlrun, tmp_path: Path) -> None:
    answer = rlrun("env", "push", tmp_path, "--owner", "me")
    assert answer.code == 2
    assert "pyproject.toml" in answer.err


@pytest.mark.slow
def test_a_failed_build_shows_its_last_lines(rlrun: Rlrun, s3: InMemoryStore, project: Path) -> None:
    (project / "pyproject.toml").write_text(PYPROJECT.replace('"reverse_text.py"', '"absent"') + "[tool.hatch.nonsense")
    assert rlrun("env", "push", project, "--owner", "me").code == 2
    (project / "pyproject.toml").write_text(PYPROJECT.replace('version = "0.1.0"', 'version = "no version"'))
    answer = rlrun("env", "push", project, "--owner", "me")
    assert answer.code == 1
    assert "nvalid version" in answer.err
    assert s3.objects == {}


@pytest.mark.slow
def test_a_version_in_another_spelling_is_the_same_one(rlrun: Rlrun, s3: InMemoryStore, project: Path) -> None:
    (project / "pyproject.toml").write_text(PYPROJECT.replace("0.1.0", "0.1"))
    assert rlrun("env", "push", project, "--owner", "me").code == 0
    before = dict(s3.objects)
    (project / "pyproject.toml").write_text(PYPROJECT)
    answer = rlrun("env", "push", project, "--owner", "me")
    assert (answer.code, "increase the version" in answer.err) == (1, True)
    assert s3.objects == before


@pytest.mark.slow
def test_access_denied_is_reported(
    rlrun: Rlrun, s3: InMemoryStore, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(uri: object) -> None:
        raise AccessDenied("rlrun-server refuses: ann may not create rlenvironments")

    monkeypatch.setattr(s3, "list_files", deny)
    answer = rlrun("env", "push", project, "--owner", "me")
    assert answer.code == 1
    assert "ann may not create rlenvironments" in answer.err


def test_timestamps_do_not_change_the_digest(tmp_path: Path) -> None:
    one = content_digest(wheel(tmp_path, date=1980).read_bytes())
    assert content_digest(wheel(tmp_path, date=2020).read_bytes()) == one
    assert content_digest(wheel(tmp_path, body="x = 2").read_bytes()) != one


def test_a_file_that_is_not_a_wheel_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "x.whl"
    file.write_text("no zip")
    with pytest.raises(Exception, match="is not a wheel"):
        read_wheel(file)


def test_the_owner_option_overrides_pyproject() -> None:
    assert package_owner({"tool": {"rlrun": {"owner": "file"}}}, "option") == "option"


@pytest.mark.parametrize(("name", "owner"), [("json", "Python"), ("test", "Python"), ("yaml", "pyyaml")])
def test_a_package_named_like_another_module_is_refused(
    rlrun: Rlrun, s3: InMemoryStore, project: Path, name: str, owner: str
) -> None:
    (project / "pyproject.toml").write_text(PYPROJECT.replace("Reverse_Text", name).replace("reverse_text", name))
    (project / "reverse_text.py").rename(project / f"{name}.py")
    answer = rlrun("env", "push", project, "--owner", "me")
    assert answer.code == 2
    assert f"pods would import the module {name} of {owner}" in answer.err
    assert not s3.objects
    answer = rlrun("env", "check", project, "--owner", "me")
    assert answer.code == 2
    assert f"the module {name} of {owner}" in answer.err
    assert rlrun("env", "init", name, "--dir", project / "new").code == 2


@pytest.mark.slow
def test_versions_that_do_not_fit_are_not_pushed(rlrun: Rlrun, s3: InMemoryStore, project: Path) -> None:
    (project / "pyproject.toml").write_text(PYPROJECT.replace("verifiers>=0.1", "verifiers>=0.1,<0.1.2"))
    arguments = ("env", "push", project, "--owner", "me")
    text = "reverse-text needs verifiers<0.1.2,>=0.1, but the environment image has verifiers"
    answer = rlrun(*arguments)
    assert (answer.code, s3.objects) == (1, {})
    assert text in " ".join(answer.err.split())
    answer = rlrun(*arguments, "--no-deps")
    assert (answer.code, len(s3.objects)) == (0, 1)
    assert text in " ".join(answer.err.split())


def test_a_wheel_without_a_name_is_no_wheel(tmp_path: Path) -> None:
    file = tmp_path / "x-1-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x-1.dist-info/METADATA", "Metadata-Version: 2.1\n")
    with pytest.raises(CliError, match="is not a wheel"):
        read_wheel(file)
