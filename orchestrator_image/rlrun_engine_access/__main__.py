"""`python -m rlrun_engine_access FOLDER`: copies middleware and plugin to a folder on the engine's module path.

The command runs in the orchestrator's image; only the copies run in the engine's image.
"""

import shutil
import sys
from pathlib import Path

from rlrun.service.containers import gpu_check

from rlrun_engine_access.head_adapters import ENTRY_POINTS

OWN = Path(__file__).parent
MODULES = (
    "__init__", "admission", "asgi", "body", "engine_usage", "head_adapters", "middleware", "order", "response_usage",
    "shared_pool",
)  # fmt: skip
FILES = (*(OWN / f"{name}.py" for name in MODULES), Path(gpu_check.__file__))


def install(folder: Path) -> Path:
    """Copy the files into a package in `folder`, and return the package's folder. May be repeated, because init
    containers are restarted.
    """
    package = folder / OWN.name
    package.mkdir(exist_ok=True)
    for path in FILES:
        shutil.copyfile(path, package / path.name)
    # vLLM finds plugins in the metadata of installed packages.
    metadata = folder / f"{OWN.name}-1.dist-info"
    metadata.mkdir(exist_ok=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {OWN.name}\nVersion: 1\n", encoding="utf-8")
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS, encoding="utf-8")
    return package


if __name__ == "__main__":
    print(f"installed {install(Path(sys.argv[1]))}")
