"""The form of a package is read from the source of its module, which is not imported."""

import ast

import pytest
from rlrun.storage.verifiers_generations.package_form import MAX_SOURCE_BYTES, PackageForm, package_form

ENVIRONMENT, TASKSET, UNKNOWN = PackageForm.environment, PackageForm.taskset, PackageForm.unknown
HARNESS = PackageForm.harness
NEWER = "class of no Python yet:"


@pytest.mark.parametrize(
    ("expected", "files"),
    [
        (ENVIRONMENT, {"my_env.py": "def load_environment(): ..."}),
        (ENVIRONMENT, {"my_env/__init__.py": "from .env import load_environment"}),
        (ENVIRONMENT, {"my_env/__init__.py": "from my_env.env import load as load_environment\n__all__ = ['x']"}),
        (ENVIRONMENT, {"my_env.py": "load_environment = make()"}),
        (ENVIRONMENT, {"my_env.py": "try:\n    import x\nexcept ImportError:\n    def load_environment(): ..."}),
        (ENVIRONMENT, {"my_env.py": "from other import *\n__all__ = ['load_environment']"}),
        (
            ENVIRONMENT,
            {
                "my_env/__init__.py": "from .a import *",
                "my_env/a/__init__.py": "from my_env.b import *",
                "my_env/b.py": "def load_environment(): ...",
            },
        ),
        # Packages for both forms have the function, which v0 needs.
        (ENVIRONMENT, {"my_env.py": "class T(vf.Taskset): ...\ndef load_environment(): ...\n__all__ = ['T']"}),
        (TASKSET, {"my_env/__init__.py": "from my_env.taskset import WordleTaskset\n__all__ = ['WordleTaskset']"}),
        (TASKSET, {"my_env.py": "class T(vf.Taskset): ...\n__all__: list[str] = ['T', 'Config']"}),
        (TASKSET, {"my_env.py": "from .a import *\n__all__ = []\n__all__ += ['T']"}),
        (HARNESS, {"my_env.py": "class H(vf.Harness[C]): ...\n__all__ = ['H']"}),
        (
            HARNESS,
            {
                "my_env/__init__.py": "from .h import H, C\n__all__ = ['H', 'C']",
                "my_env/h.py": "class C(HarnessConfig): ...\nclass B(Harness): ...\nclass H(B): ...",
            },
        ),
        (HARNESS, {"my_env.py": "from verifiers.v1 import Harness as B\nclass H(B[C]): ...\n__all__ = ['H']"}),
        (TASKSET, {"my_env.py": "from verifiers.v1 import Taskset as Harness\nclass T(Harness): ...\n__all__ = ['T']"}),
        (TASKSET, {"my_env.py": "from other import T\nclass H(vf.Harness): ...\n__all__ = ['H', 'T']"}),
        (TASKSET, {"my_env.py": "class C(BaseModel): ...\n__all__ = ['C']"}),
        (TASKSET, {"my_env.py": "class H(vf.Harness): ...\nclass T(vf.Taskset): ...\n__all__ = ['H', 'T']"}),
        (UNKNOWN, {"my_env/__init__.py": "from .a import *", "my_env/a.py": "__all__ = ['T']"}),
        (UNKNOWN, {"my_env/__init__.py": "from .a import *", "my_env/a.py": "from . import *\nfrom .a import *"}),
        (UNKNOWN, {"my_env.py": "from verifiers import *\nfrom . import *\nfrom .... import *"}),
        # Written for a newer Python than that of the server, which cannot parse it.
        (ENVIRONMENT, {"my_env.py": f"{NEWER}\ndef load_environment(): ..."}),
        (ENVIRONMENT, {"my_env.py": f"{NEWER}\nfrom .env import (\n    load_environment,\n)\n__all__ = ['x']"}),
        (TASKSET, {"my_env.py": f"{NEWER}\nclass T(vf.Taskset): ...\n__all__ = [\n    'T',\n]"}),
        (UNKNOWN, {"my_env.py": f"{NEWER}\nclass Hidden:\n    def load_environment(): ..."}),
        (UNKNOWN, {"my_env.py": "class Hidden:\n    def load_environment(): ..."}),
        (UNKNOWN, {"my_env.py": "x = " + "(" * 5000}),
        (UNKNOWN, {"my_env.py": "if a:\n    b = 1\n" + "elif a:\n    b = 1\n" * 990}),
        (UNKNOWN, {"my_env.py": "def load_environment(): ...\n" + "#" * MAX_SOURCE_BYTES}),
        (UNKNOWN, {"other.py": "def load_environment(): ..."}),
        # A folder takes precedence over a file, and a name of another module may be changed.
        (ENVIRONMENT, {"my_env/__init__.py": "def load_environment(): ...", "my_env.py": "other = 1"}),
        (
            HARNESS,
            {"my_env/__init__.py": "from .h import B as H\n__all__ = ['H']", "my_env/h.py": "class B(Harness): ..."},
        ),
        (
            UNKNOWN,
            {
                "my_env/__init__.py": "from .a import *\n" + "#" * (MAX_SOURCE_BYTES // 2),
                "my_env/a.py": "def load_environment(): ...\n" + "#" * (MAX_SOURCE_BYTES // 2),
            },
        ),
    ],
)
def test_form_of_a_package(expected: PackageForm, files: dict[str, str]) -> None:
    def read(path: str) -> bytes | None:
        return files[path].encode() if path in files else None

    assert package_form("my_env", read) is expected


def test_each_module_is_parsed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"m{number}" for number in range(12)]
    stars = "".join(f"from .{name} import *\n" for name in names)
    files = {f"my_env/{name}.py": stars for name in ["__init__", *names]}
    files["my_env/m11.py"] += "def load_environment(): ..."
    parse, parsed = ast.parse, list[bytes]()

    def counted(source: bytes) -> ast.Module:
        parsed.append(source)
        assert len(parsed) <= len(files), "a module is parsed again"
        return parse(source)

    monkeypatch.setattr(ast, "parse", counted)
    assert package_form("my_env", lambda path: files[path].encode() if path in files else None) is ENVIRONMENT


def test_a_circle_of_modules_is_not_followed_for_long() -> None:
    files = {"my_env/__init__.py": b"from .a import T\n__all__ = ['T']", "my_env/a.py": b"from . import T"}
    reads = list[str]()

    def read(path: str) -> bytes | None:
        reads.append(path)
        assert len(reads) < 100, "the circle has no end"
        return files.get(path)

    assert package_form("my_env", read) is TASKSET
