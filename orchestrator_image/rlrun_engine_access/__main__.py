"""`python -m rlrun_engine_access FOLDER`: copy the package into a folder on the engine's module path."""

import shutil
import sys
from pathlib import Path

FILES = ("__init__.py", "middleware.py")


def install(folder: Path) -> Path:
    """Copy what the engine imports and return its place. Repeatable, because init containers are restarted."""
    own = Path(__file__).parent
    package = folder / own.name
    package.mkdir(exist_ok=True)
    for name in FILES:
        shutil.copyfile(own / name, package / name)
    return package


if __name__ == "__main__":
    print(f"installed {install(Path(sys.argv[1]))}")
