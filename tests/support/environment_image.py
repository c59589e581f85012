"""List of the packages of the environment image, written from its lock and from what is installed here.

A lock has no modules: they are those of the same packages in the Python of the tests, which has all of them.
"""

import argparse
import importlib.metadata
import sys

from rlrun.api.base.names import package_name
from rlrun.storage.environment_image import LIST

from tests.support.source_tree import ROOT

COMMAND = "python -m tests.support.environment_image"
LOCK = ROOT / "requirements" / "orchestrator.lock"


def text() -> str:
    """Return the content of the list."""
    modules: dict[str, set[str]] = {}
    for module, packages in importlib.metadata.packages_distributions().items():
        for package in packages:
            if module.isidentifier():
                modules.setdefault(package_name(package), set()).add(module)
    lines = []
    for line in LOCK.read_text(encoding="utf-8").splitlines():
        name, _, version = line.partition("==")
        lines.append(" ".join([f"{package_name(name)}=={version}", *sorted(modules.get(package_name(name), ()))]))
    return "".join(f"{line}\n" for line in lines)


def main() -> int:
    """Write or check the list. Returns 1 if a check finds a difference."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Write the list of packages of the environment image.")
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the list is not up to date")
    if parser.parse_args().check:
        if LIST.is_file() and LIST.read_text(encoding="utf-8") == text():
            return 0
        print(f"{LIST.relative_to(ROOT)} is not what the lock says: run `{COMMAND}`", file=sys.stderr)
        return 1
    LIST.write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
