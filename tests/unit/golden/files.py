"""The expected contracts as YAML files, one each."""

from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "golden"
COMMAND = "python -m tests.unit.golden.regenerate"


def path_of(name: str) -> Path:
    """Where the expected contract is."""
    return FOLDER / f"{name}.yaml"


def to_text(data: Any) -> str:
    """The contract as it is written to its file."""
    return yaml.dump(data, Dumper=Plain, sort_keys=False, default_flow_style=None, allow_unicode=True, width=120)


class Plain(yaml.SafeDumper):
    """Writes equal parts out instead of referring to the first of them."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
