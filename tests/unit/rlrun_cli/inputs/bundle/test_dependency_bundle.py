"""uv and pip find the wheels that the environment image lacks, in a folder of tiny wheels that stands for the index."""

import os
import socket
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from rlrun.storage.environment_image import ImagePackage
from rlrun_cli.inputs import requirements
from rlrun_cli.inputs.bundle import dependency_bundle, package_tools
from rlrun_cli.inputs.bundle.dependency_bundle import check_size, describe, find_dependencies, is_complete
from rlrun_cli.inputs.wheel_builder import Wheel, read_wheel
from rlrun_cli.terminal.errors import CliError

IMAGE = {"verifiers": "0.1.14", "datasets": "4.6.1", "numpy": "2.4.6", "pyarrow": "22.0.0+image"}
TAG = "py3-none-any"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only index of pip: a folder."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/not-a-setting-of-pip")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    found = {name: ImagePackage(name, version, (name,)) for name, version in IMAGE.items()}
    monkeypatch.setattr(requirements, "image_packages", lambda *_: found)
    return folder


def write(folder: Path, name: str, version: str = "1.0", *headers: str, tag: str = TAG, body: str = "x = 1") -> Path:
    """Write a wheel. `headers`: of its metadata, besides name and version."""
    stem = f"{name.replace('-', '_')}-{version}"
    file = folder / f"{stem}-{tag}.whl"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *headers]
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr(f"{name.replace('-', '_')}.py", body)
        archive.writestr(f"{stem}.dist-info/METADATA", "\n".join(metadata) + "\n")
        archive.writestr(f"{stem}.dist-info/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{stem}.dist-info/RECORD", "")
    return file


BACKEND = """
import pathlib, sys, zipfile
NAME, VERSION, TAG, REQUIRES = {name!r}, {version!r}, {tag!r}, {requires!r}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    {action}
    stem = f"{{NAME}}-{{VERSION}}"
    headers = [f"Metadata-Version: 2.1", f"Name: {{NAME}}", f"Version: {{VERSION}}", *REQUIRES]
    with zipfile.ZipFile(pathlib.Path(folder, f"{{stem}}-{{TAG}}.whl"), "w") as archive:
        archive.writestr(f"{{NAME}}.py", "x = 1")
        archive.writestr(f"{{stem}}.dist-info/METADATA", "\\n".join(headers) + "\\n")
        archive.writestr(f"{{stem}}.dist-info/WHEEL", f"Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: {{TAG}}\\n")
        archive.writestr(f"{{stem}}.dist-info/RECORD", "")
    return f"{{stem}}-{{TAG}}.whl"
"""


def write_source(folder: Path, name: str, version: str, *requires: str, tag: str = TAG, action: str = "pass") -> Path:
    """Write a source distribution with a build backend of its own. `action`: statement that the build runs."""
    stem = f"{name}-{version}"
    (folder / stem).mkdir()
    (folder / stem / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (folder / stem / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    )
    code = BACKEND.format(name=name, version=version, tag=tag, requires=requires, action=action)
    (folder / stem / "backend.py").write_text(code)
    with tarfile.open(folder / f"{stem}.tar.gz", "w:gz") as archive:
        archive.add(folder / stem, stem)
    return folder / f"{stem}.tar.gz"


@pytest.fixture
def environment(tmp_path: Path) -> Callable[..., Wheel]:
    def make(*requires: str, python: str = ">=3.11") -> Wheel:
        headers = [f"Requires-Python: {python}", *(f"Requires-Dist: {text}" for text in requires)]
        return read_wheel(write(tmp_path, "my-env", "1.0", *headers))

    return make


def text(error: CliError) -> str:
    """Return what a user sees, without line breaks."""
    return " ".join(" ".join([str(error), error.hint or "", *error.details]).split())


def files(wheels: list[Wheel]) -> list[str]:
    return [wheel.file for wheel in wheels]


@pytest.mark.slow
def test_wheels_of_requirements_are_added_with_what_these_require(
    index: Path, environment: Callable[..., Wheel], capsys: pytest.CaptureFixture[str]
) -> None:
    write(index, "helper-a", "1.0", "Requires-Dist: helper-b>=2", "Requires-Dist: numpy>=2")
    for version in ("1.0", "2.0", "2.1"):
        write(index, "helper-b", version)
    write(index, "unused")
    (index / "numpy-2.4.6-py3-none-any.whl").write_text("pip must not read this")
    found = find_dependencies([environment("helper_a", "verifiers>=0.1.14")])
    assert files(found) == [f"helper_a-1.0-{TAG}.whl", f"helper_b-2.1-{TAG}.whl"]
    assert "helper-a" in capsys.readouterr().err
    assert "sha256:" in describe(found[0])
    assert is_complete([*found, environment("helper_a")])


@pytest.mark.slow
def test_markers_hold_as_in_the_image(index: Path, environment: Callable[..., Wheel]) -> None:
    write(
        index,
        "helper",
        "1.0",
        'Requires-Dist: colorama; sys_platform == "win32"',
        'Requires-Dist: tomli; python_version < "3.11"',
        'Requires-Dist: linux-only; sys_platform == "linux" and platform_machine == "x86_64"',
        'Requires-Dist: old-python; python_full_version < "3.11.15"',
    )
    for name in ("linux-only", "old-python"):
        write(index, name)
    found = find_dependencies([environment("helper", 'windows; sys_platform == "win32"')])
    assert [wheel.name for wheel in found] == ["helper", "linux-only", "old-python"]


def test_nothing_is_looked_for_if_the_image_has_it(
    index: Path, environment: Callable[..., Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dependency_bundle, "run_tool", lambda *_: pytest.fail("uv was called"))
    assert find_dependencies([environment("verifiers", "numpy<3", 'tomli; python_version < "3.11"')]) == []


@pytest.mark.slow
def test_wheels_are_those_of_the_image_s_platform(index: Path, environment: Callable[..., Wheel]) -> None:
    for tag in (
        "cp311-cp311-macosx_11_0_arm64",
        "cp311-cp311-win_amd64",
        "cp311-cp311-manylinux_2_35_x86_64",
        "cp311-cp311-manylinux_2_28_aarch64",
        "cp312-cp312-manylinux_2_28_x86_64",
        "cp311-cp311-manylinux_2_17_x86_64",
        TAG,
    ):
        write(index, "native", "1.0", tag=tag)
    write(index, "stable", "2.0", tag="cp39-abi3-manylinux_2_28_x86_64")
    write(index, "stable", "3.0", "Requires-Python: >=3.12")
    found = find_dependencies([environment("native", "stable")])
    assert files(found) == [
        "native-1.0-cp311-cp311-manylinux_2_17_x86_64.whl",
        "stable-2.0-cp39-abi3-manylinux_2_28_x86_64.whl",
    ]


@pytest.mark.slow
def test_wheels_are_those_of_the_python_that_requires_python_chooses(
    index: Path, environment: Callable[..., Wheel], capsys: pytest.CaptureFixture[str]
) -> None:
    for tag in ("cp311-cp311", "cp312-cp312", "cp313-cp313", "cp313-cp313t", "cp314-cp314"):
        write(index, "native", "1.0", tag=f"{tag}-manylinux_2_17_x86_64")
    write(index, "helper", "1.0")
    write(index, "helper", "2.0", "Requires-Python: >=3.12", 'Requires-Dist: newer; python_version >= "3.13"')
    write(index, "helper", "3.0", "Requires-Python: >=3.14")
    write(index, "newer")
    write_source(index, "only_source", "1.0", tag="py313-none-any")
    found = find_dependencies([environment("native", "helper", "only-source", python=">=3.12")])
    assert files(found) == [
        f"helper-2.0-{TAG}.whl",
        "native-1.0-cp313-cp313-manylinux_2_17_x86_64.whl",
        f"newer-1.0-{TAG}.whl",
        "only_source-1.0-py313-none-any.whl",
    ]
    assert "(Linux x86_64, Python 3.13)" in capsys.readouterr().err
    assert [wheel.version for wheel in find_dependencies([environment("helper")])] == ["1.0"]


@pytest.mark.slow
def test_a_requirement_that_needs_a_newer_python_is_told_with_how_to_choose_it(
    index: Path, environment: Callable[..., Wheel]
) -> None:
    for version in ("1.0", "2.0"):
        write(index, "helper", version, "Requires-Python: >=3.12")
    with pytest.raises(CliError) as told:
        find_dependencies([environment("helper>=2")])
    assert "helper==2.0 requires Python >=3.12" in text(told.value)
    assert (
        "my-env runs with Python 3.11, because its requires-python allows that version; set "
        'requires-python to ">=3.13" to run with Python 3.13'
    ) in told.value.details
    assert files(find_dependencies([environment("helper>=2", python=">=3.12")])) == [f"helper-2.0-{TAG}.whl"]


def test_a_python_that_the_image_lacks_is_refused(index: Path, environment: Callable[..., Wheel]) -> None:
    for python in (">=3.14", "<3.11"):
        with pytest.raises(CliError) as told:
            find_dependencies([environment("helper", python=python)])
        assert told.value.details == [
            f"my-env: requires-python asks for {python}, but the environment image offers 3.11 and 3.13"
        ]


@pytest.mark.slow
def test_a_conflict_with_the_image_is_told_with_both_sides(index: Path, environment: Callable[..., Wheel]) -> None:
    write(index, "helper", "1.0", "Requires-Dist: datasets<3")
    write(index, "datasets", "2.9")
    with pytest.raises(CliError) as told:
        find_dependencies([environment("helper")])
    assert "all versions of helper depend on datasets<3" in text(told.value)
    assert "the environment image has datasets 4.6.1" in told.value.details
    assert "--no-deps" in (told.value.hint or "")


def test_a_conflict_of_the_package_needs_no_pip(index: Path, environment: Callable[..., Wheel]) -> None:
    with pytest.raises(CliError) as told:
        find_dependencies([environment("datasets<3")])
    assert told.value.details == ["my-env needs datasets<3, but the environment image has datasets 4.6.1"]


@pytest.mark.slow
def test_an_older_version_that_fits_the_image_is_chosen_with_a_remark(
    index: Path, environment: Callable[..., Wheel], capsys: pytest.CaptureFixture[str]
) -> None:
    write(index, "helper", "1.0", "Requires-Dist: datasets>=4", "Requires-Dist: deeper<2")
    write(index, "helper", "2.0", "Requires-Dist: datasets>=5")
    write(index, "helper", "3.0")
    for version in ("1.0", "2.0"):
        write(index, "deeper", version)
    found = find_dependencies([environment("helper<3")])
    assert [describe(wheel).partition(":")[0] for wheel in found] == ["deeper 1.0", "helper 1.0"]
    told = capsys.readouterr().err
    assert "helper 1.0 is older than 2.0" in told
    assert "deeper 1.0 is older" not in told


@pytest.mark.slow
def test_included_wheels_are_kept(index: Path, environment: Callable[..., Wheel], tmp_path: Path) -> None:
    included = read_wheel(write(tmp_path, "helper", "1.5", "Requires-Dist: deeper", "Requires-Dist: pyarrow>=22"))
    write(index, "helper", "2.0")
    write(index, "deeper")
    write(index, "strict", "1.0", "Requires-Dist: helper>=2")
    assert files(find_dependencies([included, environment("helper")])) == [f"deeper-1.0-{TAG}.whl"]
    with pytest.raises(CliError) as told:
        find_dependencies([included, environment("helper", "strict")])
    assert "all versions of strict depend on helper>=2" in text(told.value)
    assert "the pushed wheel is helper 1.5" in told.value.details


@pytest.mark.slow
def test_extras_of_the_image_s_packages_are_added(index: Path, environment: Callable[..., Wheel]) -> None:
    extras = ("Provides-Extra: audio", 'Requires-Dist: soundfile; extra == "audio"', "Requires-Dist: numpy")
    write(index, "datasets", "4.6.1", *extras)
    write(index, "datasets", "5.0", *extras)
    write(index, "soundfile")
    write(index, "helper", "1.0", "Requires-Dist: datasets[audio]")
    assert files(find_dependencies([environment("datasets[audio]>=4")])) == [f"soundfile-1.0-{TAG}.whl"]
    assert [wheel.name for wheel in find_dependencies([environment("helper")])] == ["helper", "soundfile"]


SOURCE_ONLY = "Wheels are required for `only-source`"


@pytest.mark.slow
def test_a_source_distribution_is_built_here(
    index: Path, environment: Callable[..., Wheel], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for version in ("1.0", "1.5", "2.0"):
        write_source(index, "only_source", version, "Requires-Dist: deeper>=1", tag="py2.py3-none-any")
    write_source(index, "deeper", "1.0", "Requires-Dist: helper", tag="py311-none-any")
    write(index, "helper")
    found = find_dependencies([environment("only-source<2")])
    assert files(found) == [
        "deeper-1.0-py311-none-any.whl",
        f"helper-1.0-{TAG}.whl",
        "only_source-1.5-py2.py3-none-any.whl",
    ]
    told = capsys.readouterr().err
    assert "runs their code on this machine" in told
    assert "--only-binary disables this" in told
    assert "from only_source-1.5.tar.gz (sha256:" in told


@pytest.mark.slow
def test_a_built_wheel_obeys_the_constraints(index: Path, environment: Callable[..., Wheel]) -> None:
    write_source(index, "only_source", "1.0", "Requires-Dist: datasets<3")
    with pytest.raises(CliError) as told:
        find_dependencies([environment("only-source")])
    assert "the environment image has datasets 4.6.1" in told.value.details


@pytest.mark.slow
def test_a_wheel_for_one_platform_is_refused(index: Path, environment: Callable[..., Wheel]) -> None:
    write_source(index, "only_source", "1.0", tag="cp311-cp311-linux_x86_64")
    with pytest.raises(CliError, match=r"for one platform only: only_source-1\.0-cp311-cp311-linux_x86_64") as told:
        find_dependencies([environment("only-source")])
    assert "`pip wheel --no-deps only-source==1.0`, and pass it with --include" in (told.value.hint or "")


@pytest.mark.slow
@pytest.mark.parametrize("only_binary", [[":all:"], ["other,only.source"]])
def test_a_source_distribution_is_not_built_if_forbidden(
    index: Path, environment: Callable[..., Wheel], tmp_path: Path, only_binary: list[str]
) -> None:
    for version in ("1.0", "2.0"):
        write_source(index, "only_source", version, action=f"open({str(tmp_path / 'ran')!r}, 'w')")
    with pytest.raises(CliError) as told:
        find_dependencies([environment("only-source<2")], only_binary=only_binary)
    assert SOURCE_ONLY in text(told.value)
    assert "--include" in (told.value.hint or "")
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_pip_s_own_setting_forbids_it_too(
    index: Path, environment: Callable[..., Wheel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_source(index, "only_source", "1.0", action=f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setenv("PIP_ONLY_BINARY", ":all:")
    with pytest.raises(CliError) as told:
        find_dependencies([environment("only-source")])
    assert SOURCE_ONLY in text(told.value)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow
def test_a_source_distribution_with_an_address_is_built(
    index: Path, environment: Callable[..., Wheel], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_source(tmp_path, "only_source", "1.0", action=f"open({str(tmp_path / 'ran')!r}, 'w')")
    wheel = environment(f"only-source @ {source.as_uri()}")
    with pytest.raises(CliError) as told:
        find_dependencies([wheel], only_binary=["only-source"])
    assert "only-source" in text(told.value)
    assert not (tmp_path / "ran").exists()
    assert files(find_dependencies([wheel])) == [f"only_source-1.0-{TAG}.whl"]
    assert "runs their code on this machine" in capsys.readouterr().err


@pytest.mark.slow
def test_a_failed_build_is_told_with_its_output(
    index: Path, environment: Callable[..., Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    endless = "print('x' * 50_000_000); raise SystemExit('no compiler')"
    write_source(index, "only_source", "1.0", action=endless)
    with pytest.raises(CliError) as told:
        find_dependencies([environment("only-source")])
    assert "only-source" in text(told.value)
    assert "no compiler" in text(told.value)
    assert max(map(len, told.value.details)) <= package_tools.LINE_CHARACTERS


@pytest.mark.slow
def test_builds_have_the_deadline_of_the_search(
    index: Path, environment: Callable[..., Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_source(index, "only_source", "1.0", action="import time; time.sleep(3600)")
    with pytest.raises(CliError, match="within 15 s"):
        find_dependencies([environment("only-source")], seconds=15.0)


@pytest.mark.slow
def test_a_source_distribution_of_which_only_other_versions_are_wheels_is_built(
    index: Path, environment: Callable[..., Wheel]
) -> None:
    write(index, "only-source", "1.0")
    write_source(index, "only_source", "2.0")
    for version in ("1.0", "1.1"):
        write(index, "helper", version, "Requires-Dist: only-source==2.0")
    with pytest.raises(CliError) as told:
        find_dependencies([environment("helper")], only_binary=[":all:"])
    assert "depend on only-source==2.0" in text(told.value)
    assert files(find_dependencies([environment("helper")])) == [
        f"helper-1.1-{TAG}.whl",
        f"only_source-2.0-{TAG}.whl",
    ]


@pytest.mark.slow
def test_requirements_that_contradict_each_other_are_told(index: Path, environment: Callable[..., Wheel]) -> None:
    for version in ("1.0", "2.0"):
        write(index, "deeper", version)
        write_source(index, "deeper", version)
    write(index, "helper-a", "1.0", "Requires-Dist: deeper<2")
    write(index, "helper-b", "1.0", "Requires-Dist: deeper>=2")
    with pytest.raises(CliError) as told:
        find_dependencies([environment("helper-a", "helper-b")])
    assert "versions of helper-a depend on deeper<2" in text(told.value)
    assert "versions of helper-b depend on deeper>=2" in text(told.value)


@pytest.mark.slow
def test_a_package_that_does_not_exist_is_named(index: Path, environment: Callable[..., Wheel]) -> None:
    with pytest.raises(CliError) as told:
        find_dependencies([environment("nothing-like-this>=3")])
    assert "nothing-like-this was not found" in text(told.value)


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield listening.getsockname()[1]


@pytest.mark.slow
def test_an_index_that_cannot_be_reached_is_told(
    index: Path, environment: Callable[..., Wheel], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://user:secret@127.0.0.1:{closed.getsockname()[1]}/simple?token=secret"
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.setenv("PIP_INDEX_URL", url)
        monkeypatch.setenv("PIP_RETRIES", "0")
        with pytest.raises(CliError) as told:
            find_dependencies([environment("helper")])
    assert "Failed to fetch" in text(told.value)
    assert "secret" not in " ".join([str(told.value), told.value.hint or "", *told.value.details])
    assert "secret" not in capsys.readouterr().err


@pytest.mark.slow
def test_the_search_has_a_deadline(
    index: Path, environment: Callable[..., Wheel], monkeypatch: pytest.MonkeyPatch, silent_port: int
) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{silent_port}/simple")
    with pytest.raises(CliError, match="within 3 s") as told:
        find_dependencies([environment("helper")], seconds=3.0)
    assert "--include" in (told.value.hint or "")


def test_a_python_without_pip_is_told(
    index: Path, environment: Callable[..., Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(CliError, match="has no pip") as told:
        find_dependencies([environment("helper")])
    assert "ensurepip" in (told.value.hint or "")


@pytest.mark.parametrize(
    ("limit", "said"),
    [("MAX_PACKAGE_BYTES", "take up"), ("MAX_UNPACKED_BYTES", "unpack to"), ("MAX_PACKAGE_FILES", "contain 8 files")],
)
def test_a_package_that_is_too_large_names_its_largest_wheels(
    environment: Callable[..., Wheel], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, said: str
) -> None:
    large = read_wheel(write(tmp_path, "large", body="x" * 5000))
    wheels = [environment(), large]
    check_size(wheels)
    monkeypatch.setattr(dependency_bundle, limit, 7 if limit.endswith("FILES") else 3000)
    with pytest.raises(CliError, match=f"the wheels of the package {said}") as told:
        check_size(wheels)
    assert len(told.value.details) == 2
    if not limit.endswith("FILES"):
        assert told.value.details[0].startswith(large.file)


@pytest.mark.slow
def test_downloads_that_are_too_large_are_told(
    index: Path, environment: Callable[..., Wheel], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(index, "large", body="x" * 5000)
    monkeypatch.setattr(dependency_bundle, "MAX_PACKAGE_BYTES", 3000)
    with pytest.raises(CliError) as told:
        find_dependencies([environment("large")])
    assert told.value.details[0].startswith(f"large-1.0-{TAG}.whl: ")


@pytest.mark.slow
def test_the_newest_version_is_taken_though_it_needs_a_package_that_exists_as_source_only(
    index: Path, environment: Callable[..., Wheel]
) -> None:
    write(index, "helper", "1.0")
    write(index, "helper", "2.0", "Requires-Dist: only-source>=1")
    write_source(index, "only_source", "1.0")
    assert files(find_dependencies([environment("helper")])) == [f"helper-2.0-{TAG}.whl", f"only_source-1.0-{TAG}.whl"]


@pytest.mark.slow
def test_the_newest_version_is_built_though_an_older_one_is_a_wheel(
    index: Path, environment: Callable[..., Wheel]
) -> None:
    write(index, "helper", "1.0")
    write_source(index, "helper", "2.0")
    assert files(find_dependencies([environment("helper")])) == [f"helper-2.0-{TAG}.whl"]
    write_source(index, "helper", "3.0", tag="cp311-cp311-linux_x86_64")
    with pytest.raises(CliError, match=r"helper-3\.0\.tar\.gz .* the built wheel is for one platform"):
        find_dependencies([environment("helper")])
