"""Copy the generated CRDs into the chart: `python charts/rlrun/sync_crds.py [--check]`.

Helm only reads files below the chart, and a link to the outside does not survive packaging; a test compares both
folders, so the copy cannot fall behind unseen.
"""

import sys
from pathlib import Path

CHART = Path(__file__).resolve().parent
SOURCE = CHART.parent.parent / "crds"
TARGET = CHART / "files" / "crds"


def contents(folder: Path) -> dict[str, bytes]:
    """File contents by name."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("*.yaml"))}


def sync() -> None:
    """Make the copy equal to the source, leftovers removed. Raises SystemExit when there is no source."""
    wanted = contents(SOURCE)
    if not wanted:
        raise SystemExit(f"{SOURCE} holds no CRDs: run `python -m rlrun.codegen.crd` first")
    TARGET.mkdir(parents=True, exist_ok=True)
    for stale in contents(TARGET).keys() - wanted.keys():
        (TARGET / stale).unlink()
    for name, data in wanted.items():
        (TARGET / name).write_bytes(data)


if __name__ == "__main__":
    if "--check" in sys.argv[1:]:
        if contents(SOURCE) != contents(TARGET):
            raise SystemExit("the chart's CRDs differ from crds/: run `python charts/rlrun/sync_crds.py`")
    else:
        sync()
