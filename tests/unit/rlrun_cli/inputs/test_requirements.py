"""Requirements are compared with the environment image by versions and markers."""

import pytest
from rlrun_cli.inputs.requirements import conflicts, missing_packages
from rlrun_cli.inputs.wheel_builder import Wheel

IMAGE = "the environment image has"


def wheel(*requires: str, name: str = "my-env", version: str = "1.0", python: str = "") -> Wheel:
    return Wheel(f"{name}-{version}-py3-none-any.whl", b"", name, version, requires, python)


@pytest.fixture(autouse=True)
def packages(monkeypatch: pytest.MonkeyPatch) -> None:
    from rlrun.storage.environment_image import ImagePackage
    from rlrun_cli.inputs import requirements

    versions = {"datasets": "4.6.1", "numpy": "2.4.6rc1"}
    own = {"v0": {"verifiers": "0.3.1", "mcp": "1.30.0"}, "v1": {"verifiers": "0.4.0", "mcp": "2.0.0"}}
    found = {
        generation: {name: ImagePackage(name, version, (name,)) for name, version in {**versions, **more}.items()}
        for generation, more in own.items()
    }
    monkeypatch.setattr(requirements, "image_packages", found.__getitem__)


@pytest.mark.parametrize(
    ("requirement", "said"),
    [
        ("verifiers>=0.5", f"my-env needs verifiers>=0.5, but {IMAGE} verifiers 0.3.1 and 0.4.0"),
        ("verifiers==0.1.5", f"my-env needs verifiers==0.1.5, but {IMAGE} verifiers 0.3.1 and 0.4.0"),
        ("datasets<3", f"my-env needs datasets<3, but {IMAGE} datasets 4.6.1"),
        ("Verifiers [envs] (>=0.5)", f"my-env needs verifiers>=0.5, but {IMAGE} verifiers 0.3.1 and 0.4.0"),
        ("mcp>=2", f"my-env needs mcp>=2, but {IMAGE} mcp 1.30.0"),
        ('datasets<3; python_version >= "3.11"', f"my-env needs datasets<3, but {IMAGE} datasets 4.6.1"),
        (
            "verifiers @ https://u:secret@host/v.whl",
            f"my-env needs verifiers from a URL, but {IMAGE} verifiers 0.3.1 and 0.4.0",
        ),
        ("my env of https://u:secret@host", "a requirement of my-env, 'my', cannot be read"),
    ],
)
def test_a_version_that_does_not_fit_is_told(requirement: str, said: str) -> None:
    (found,) = conflicts([wheel(requirement)])
    assert found.text == said
    assert found.hint
    assert "secret" not in found.text + found.hint


@pytest.mark.parametrize(
    "requirement",
    [
        'tomli; python_version < "3.11"',
        'pywin32>=300; sys_platform == "win32"',
        'nltk; extra == "more"',
        "verifiers",
        "verifiers>=0.1.14",
        "verifiers==0.3.*",
        "verifiers>=0.4",
        "datasets[audio]>=4",
        "numpy>=2.4",
        'datasets<3; python_version < "3.11"',
    ],
)
def test_what_fits_or_is_not_needed_is_not_told(requirement: str) -> None:
    assert not conflicts([wheel(requirement)])
    assert not missing_packages([wheel(requirement)])


def test_packages_that_neither_the_image_nor_a_wheel_has_are_missing() -> None:
    wheels = [wheel("NLTK>=3", "helper_a[more]", "numpy"), wheel('regex; extra == "more"', name="helper-a")]
    assert missing_packages(wheels) == ["nltk", "regex"]
    assert missing_packages([wheel("helper-a"), wheels[1]]) == []


def test_a_pushed_wheel_must_fit_and_replaces_no_package_of_the_image() -> None:
    (found,) = conflicts([wheel("helper>=2"), wheel(name="helper", version="1.0")])
    assert found.text == "my-env needs helper>=2, but the wheel for helper is version 1.0"
    (found,) = conflicts([wheel(name="numpy", version="2.0"), wheel()])
    assert found.text == "the wheel for numpy 2.0 has no effect; pods use version 2.4.6rc1 from the environment image"


def test_requirements_are_compared_with_the_packages_of_the_generation() -> None:
    assert not conflicts([wheel("verifiers>=0.4", "mcp>=2")])
    (found,) = conflicts([wheel("verifiers>=0.4", "mcp<2")])
    assert found.text == f"my-env needs mcp<2, but {IMAGE} mcp 2.0.0"


def test_a_pushed_version_of_verifiers_replaces_that_of_the_image_if_runs_support_it() -> None:
    pushed = wheel(name="verifiers", version="0.3.0")
    assert not conflicts([pushed, wheel("verifiers==0.3.0")])
    (found,) = conflicts([pushed, wheel("verifiers>=0.3.1")])
    assert found.text == "my-env needs verifiers>=0.3.1, but the wheel for verifiers is version 0.3.0"
    (found,) = conflicts([wheel(name="verifiers", version="0.5.0"), wheel()])
    assert found.text == "runs do not support verifiers 0.5.0, which was passed as a wheel"
    assert ">=0.4" in found.hint


def test_requires_python_chooses_the_python_that_requirements_are_compared_for() -> None:
    requires = ('datasets<3; python_version < "3.13"', 'nltk; python_full_version >= "3.12"')
    assert not conflicts([wheel(*requires, python=">=3.12")])
    assert missing_packages([wheel(*requires, python=">=3.12")]) == ["nltk"]
    assert len(conflicts([wheel(*requires, python=">=3.10,<3.14")])) == 1
    assert missing_packages([wheel(*requires)]) == []


@pytest.mark.parametrize("python", [">=3.14", "<3.11"])
def test_a_python_that_the_image_lacks_is_told(python: str) -> None:
    (found,) = conflicts([wheel(name="helper", python=">=3.12"), wheel(python=python)])
    assert found.text == f"my-env: requires-python asks for {python}, but the environment image offers 3.11 and 3.13"
    assert "requires-python" in found.hint


def test_a_wheel_for_another_python_than_the_environment_s_is_told_with_how_to_choose_it() -> None:
    helper = wheel(name="helper", python=">=3.12")
    (found,) = conflicts([helper, wheel(python=">=3.11")])
    assert found.text == "helper needs Python >=3.12, but my-env runs with CPython 3.11 on Linux x86_64"
    assert 'or set requires-python = ">=3.13" in my-env' in found.hint
    assert not conflicts([helper, wheel(python=">=3.12")])
    (found,) = conflicts([wheel(name="helper", python="<3.12"), wheel(python=">=3.12")])
    assert 'or set requires-python = ">=3.11" in my-env' in found.hint
    (found,) = conflicts([wheel(name="helper", python=">=3.14"), wheel(python=">=3.12")])
    assert found.hint == "require a different version of helper"


@pytest.mark.parametrize(
    ("tags", "pythons"),
    [
        ("py3-none-any", ["3.11", "3.13"]),
        ("py2.py3-none-any", ["3.11", "3.13"]),
        ("cp39-abi3-manylinux_2_28_x86_64", ["3.11", "3.13"]),
        ("cp311-cp311-manylinux_2_17_x86_64.manylinux2014_x86_64", ["3.11"]),
        ("cp311-cp311-manylinux_2_34_x86_64", ["3.11"]),
        ("cp313-cp313-manylinux_2_34_x86_64", ["3.13"]),
        ("cp312-abi3-manylinux_2_17_x86_64", ["3.13"]),
        ("cp312-cp312-manylinux_2_17_x86_64", []),
        ("cp311-cp311-macosx_11_0_arm64", []),
        ("cp313-cp313-manylinux_2_17_aarch64", []),
        ("cp311-cp311-musllinux_1_2_x86_64", []),
        ("cp313-cp313-manylinux_2_39_x86_64", []),
    ],
)
def test_the_python_must_be_able_to_load_each_wheel(tags: str, pythons: list[str]) -> None:
    helper = Wheel(f"helper-1.0-{tags}.whl", b"", "helper", "1.0", (), "")
    for version, requires_python in (("3.11", ">=3.11"), ("3.13", ">=3.12")):
        found = conflicts([helper, wheel(python=requires_python)])
        assert len(found) == (0 if version in pythons else 1)
        assert all(tags.partition("-")[0] in conflict.text for conflict in found)
        assert all(f"but my-env runs with CPython {version}" in conflict.text for conflict in found)
