"""Copy the generated CRDs into the chart: `python charts/rlrun/sync_crds.py [--check]`.

Helm only reads files below the chart, and symbolic links to the outside do not survive packaging. A test compares both
folders.
"""

import sys
from pathlib import Path

CHART = Path(__file__).resolve().parent
SOURCE = CHART.parent.parent / "crds"
TARGET = CHART / "files" / "crds"


def contents(folder: Path) -> dict[str, bytes]:
    """Return file contents by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.yaml"))}


def sync() -> None:
    """Copy all CRDs and delete stale copies. Raises SystemExit if the source folder is missing."""
    source = contents(SOURCE)
    if not source:
        raise SystemExit(f"{SOURCE} contains no CRDs: run `python -m rlrun.codegen.crd` first")
    TARGET.mkdir(parents=True, exist_ok=True)
    for stale in contents(TARGET).keys() - source.keys():
        (TARGET / stale).unlink()
    for name, data in source.items():
        (TARGET / name).write_bytes(data)


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        if contents(SOURCE) != contents(TARGET):
            raise SystemExit("the chart's CRDs differ from crds/: run `python charts/rlrun/sync_crds.py`")
    else:
        sync()
