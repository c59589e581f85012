"""`python -m rlrun_engine_access FOLDER`: copy what the engine's image runs into a folder on the engine's module path.

It runs in the orchestrator's image; only the copies run in the engine's.
"""

import shutil
import sys
from pathlib import Path

from rlrun.service.containers import gpu_check

OWN = Path(__file__).parent
FILES = (OWN / "__init__.py", OWN / "middleware.py", Path(gpu_check.__file__))


def install(folder: Path) -> Path:
    """Copy the files and return their folder. Repeatable, because init containers are restarted."""
    package = folder / OWN.name
    package.mkdir(exist_ok=True)
    for path in FILES:
        shutil.copyfile(path, package / path.name)
    return package


if __name__ == "__main__":
    print(f"installed {install(Path(sys.argv[1]))}")
