"""Lists of the packages of the environment image, written from its locks and from what is installed here.

A lock has no modules: they are those of the same packages in the Python of the tests. Of packages that this Python
lacks the list keeps the modules; those that are new to it come from `--packages`, a folder that they are installed in.
"""

import argparse
import importlib.metadata
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlrun.api.base.names import package_name
from rlrun.storage.environment_image import LISTS, Generation

from tests.support.locks import pins
from tests.support.source_tree import ROOT

COMMAND = "python -m tests.support.environment_image"


def lock_of(generation: Generation) -> Path:
    """Return the lock of a generation."""
    return ROOT / "requirements" / f"environment-{generation}.lock"


def text(generation: Generation, folders: Sequence[Path] = ()) -> str:
    """Return the content of the list of a generation. Raises ValueError that names packages of unknown modules."""
    modules = {**_listed(LISTS[generation]), **_installed(folders), **_installed_here()}
    lines, unknown = [], []
    for name, version in pins(lock_of(generation)).items():
        if package_name(name) not in modules:
            unknown.append(f"{name}=={version}")
        lines.append(" ".join([f"{package_name(name)}=={version}", *sorted(modules.get(package_name(name), ()))]))
    if unknown:
        raise ValueError(f"the modules of {', '.join(unknown)} are not known: add `--packages FOLDER` that has them")
    return "".join(f"{line}\n" for line in lines)


def _listed(path: Path) -> dict[str, set[str]]:
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {line.split()[0].partition("==")[0]: set(line.split()[1:]) for line in lines}


def _installed_here() -> dict[str, set[str]]:
    modules: dict[str, set[str]] = {}
    for module, packages in importlib.metadata.packages_distributions().items():
        for package in packages:
            if module.isidentifier():
                modules.setdefault(package_name(package), set()).add(module)
    return modules


def _installed(folders: Sequence[Path]) -> Mapping[str, set[str]]:
    return {
        package_name(found.metadata["Name"]): {
            top for file in found.files or () if (top := file.parts[0].partition(".")[0]).isidentifier()
        }
        for found in importlib.metadata.distributions(path=[str(folder) for folder in folders])
    }


def main() -> int:
    """Write or check the lists. Returns 1 if a check finds a difference."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write the lists of packages of the environment image.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a list is not up to date")
    parser.add_argument("--packages", type=Path, action="append", default=[], help="folder of installed packages")
    arguments = parser.parse_args()
    for generation, path in LISTS.items():
        wanted = text(generation, arguments.packages)
        if not arguments.check:
            path.write_text(wanted, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != wanted:
            print(f"{path.relative_to(ROOT)} is not what the lock says: run `{COMMAND}`", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
