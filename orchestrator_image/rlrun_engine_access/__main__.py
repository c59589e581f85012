"""`python -m rlrun_engine_access FOLDER`: copies the middleware into a folder on the engine's module path.

The command runs in the orchestrator's image; only the copies run in the engine's image.
"""

import shutil
import sys
from pathlib import Path

from rlrun.service.containers import gpu_check

OWN = Path(__file__).parent
MODULES = (
    "__init__", "admission", "asgi", "body", "engine_usage", "middleware", "order", "response_usage", "shared_pool",
)  # fmt: skip
FILES = (*(OWN / f"{name}.py" for name in MODULES), Path(gpu_check.__file__))


def install(folder: Path) -> Path:
    """Copy the middleware's files into a package in `folder`, and return the package's folder. May be repeated, because
    init containers are restarted.
    """
    package = folder / OWN.name
    package.mkdir(exist_ok=True)
    for path in FILES:
        shutil.copyfile(path, package / path.name)
    return package


if __name__ == "__main__":
    print(f"installed {install(Path(sys.argv[1]))}")
