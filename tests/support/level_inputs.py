"""Key of all that a level of `make test` reads: a level that passed with a key is not run again with the same key.

    python -m tests.support.level_inputs LEVEL

The inputs of a level are all files of the tree but those below its paths in UNREAD, so that a new folder counts.
tests/run.sh keeps the keys with which levels passed.
"""

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePosixPath

from tests.support.source_tree import ROOT

_PAGES = ("CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md")
_PROSE = (*_PAGES, ".github", "docs/bench", "docs/design", "docs/guides", "docs/images")
_HERE = tuple(f"tests/{level}" for level in ("chaos", "lab", "mutants", "proofs", "unit"))
_TESTS = (*_HERE, "tests/apiserver", "tests/browser", "tests/pictures")
_IMAGE = (*_PROSE, *_TESTS, "charts", "cli", "crds", "demo", "server", "tests/e2e")
_OTHERS = tuple(f"tests/{level}" for level in ("browser", "e2e", "image", "lab", "mutants", "pictures", "proofs"))
_CLUSTER = (*_PROSE, *_TESTS, "bench", "docs", "tests/image")
UNREAD: dict[str, Sequence[str]] = {
    "trainer": (*_IMAGE, "operator"),
    "inference": _IMAGE,
    "browser": (*_PROSE, *_HERE, "bench", "tests/image", "trainer_image"),
    # This level runs the guides, and takes helpers from unit tests.
    "apiserver": (*_PAGES, ".github", "docs/bench", "docs/design", "docs/images", *_OTHERS),
    "e2e": _CLUSTER,
    "e2e-alone": _CLUSTER,
}
"""Files and folders that a level does not read."""


def inputs_key(root: Path, files: Iterable[str], unread: Sequence[str]) -> str:
    """Return the SHA-256 of the names, modes and contents of all files but the unread ones."""
    digest = hashlib.sha256()
    for name in sorted(files):
        path = root / name
        if any(PurePosixPath(name).is_relative_to(other) for other in unread) or not os.path.lexists(path):
            continue
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        digest.update(f"{name}\0{path.lstat().st_mode:o}\0{hashlib.sha256(content).hexdigest()}\n".encode())
    return digest.hexdigest()


def main(level: str) -> None:
    """Print the key of a level's inputs in this tree, changes that are not committed included."""
    listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    print(inputs_key(ROOT, filter(None, files), UNREAD[level]))


if __name__ == "__main__":
    main(*sys.argv[1:])
