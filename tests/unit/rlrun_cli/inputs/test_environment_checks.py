import io
import zipfile

import pytest
from rlrun.storage.environment_image import PYTHONS
from rlrun_cli.inputs.environment_checks import Remark, check_source, check_wheel
from rlrun_cli.inputs.wheel_builder import Wheel


def wheel(**files: str) -> Wheel:
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(name.replace("__slash__", "/") + ".py", text)
        archive.writestr("my_env-1.dist-info/METADATA", "")
    return Wheel("my_env-1-py3-none-any.whl", data.getvalue(), "my-env", "1")


def problems(found: list[object]) -> list[str]:
    return [str(remark) for remark in found if getattr(remark, "hint", "")]


def test_the_module_may_be_a_file_or_a_folder() -> None:
    assert not problems([*check_wheel(wheel(my_env="def load_environment(): ..."))])
    assert not problems([*check_wheel(wheel(my_env__slash____init__="def load_environment(): ..."))])
    (problem,) = problems([*check_wheel(wheel(other="def load_environment(): ..."))])
    assert "no module my_env; it contains other.py" in problem


def test_a_package_that_exports_a_harness_only_is_wrong_as_in_pods() -> None:
    (problem,) = problems([*check_wheel(wheel(my_env="class Mine(vf.Harness): ...\n__all__ = ['Mine']"))])
    assert "exports a harness of verifiers.v1 but no taskset" in problem


@pytest.mark.parametrize(
    ("source", "said", "is_wrong"),
    [
        ("def load_environment(a, b=1, *, c, d=2): ...", "args = { a = ..., c = ... }", False),
        ("def load_environment(**config): ...", "defines load_environment()", False),
        ("from x import load_environment", "not checked", False),
        ("load_environment = make()", "not checked", False),
        ("async def load_environment(): ...", "is async", True),
        ("def load_environment(a, /): ...", "a cannot be passed by name", True),
        ("if 1:\n  pass", "does not define", True),
        ("def load_environment(:", "m.py:1: not valid Python", True),
    ],
)
def test_the_function(source: str, said: str, is_wrong: bool) -> None:
    (remark,) = check_source(source.encode(), "m.py")
    assert said in remark.text
    assert bool(remark.hint) is is_wrong


def test_source_for_a_newer_python_than_this_is_not_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.version_info", (3, 11, 7))
    found = check_source(b"class of no Python:", "m.py", PYTHONS[-1])
    assert found == [Remark("m.py:1: not valid in Python 3.11; not checked for Python 3.13")]


@pytest.mark.parametrize("source", ["x = " + "-" * 100_000 + "1\n", "x = " + "a." * 100_000 + "b\n"])
def test_source_that_is_nested_too_deeply_is_named(source: str) -> None:
    (remark,) = check_source(source.encode(), "m.py")
    assert remark.text == "m.py is nested too deeply for Python"
    assert remark.hint


def test_source_of_great_size_is_not_parsed() -> None:
    (remark,) = check_source(b"x = 1\n" * 200_000, "m.py")
    assert remark.text == "m.py is larger than 1,048,576 bytes; not checked"


def test_a_folder_without_its_init_file_is_named() -> None:
    (problem,) = problems([*check_wheel(wheel(my_env__slash__my_env="def load_environment(): ..."))])
    assert "the wheel has the folder my_env, but no my_env/__init__.py" in problem
