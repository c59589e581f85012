"""Parts of a lock: packages with their versions and hashes."""

import re
from pathlib import Path

PIN = re.compile(
    r"^(?P<name>[\w.-]+)==(?P<version>[^ \n]+)(?P<hashes>(?: \\\n    --hash=sha256:[0-9a-f]{64})+)\n", re.MULTILINE
)
"""Package of a lock with the hashes of its files, as `uv pip compile --generate-hashes` writes it."""


def pins(lock: Path) -> dict[str, str]:
    """Return the version of each package of a lock."""
    return {pin["name"]: pin["version"] for pin in PIN.finditer(lock.read_text(encoding="utf-8"))}
