"""Copies the page's libraries from their npm packages: `make vendor`, or `make vendor UPDATE=preact@11.3.0`.

`vendor.json` contains the version and integrity hash of each package, and the digest of each file. Without UPDATE, the
script fetches the packages again, and they must not have changed. With UPDATE, it updates one package to another
version.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "rlrun_server" / "page" / "static" / "vendor"
LIST = FOLDER / "vendor.json"
MAX_FILE_BYTES = 1024 * 1024


def integrity_of(archive: Path) -> str:
    """Return the integrity hash of a file in npm's format."""
    return "sha512-" + base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()


def pack(package: str, version: str, folder: Path) -> Path:
    """Fetch a package and return its archive."""
    command = ["npm", "pack", "--silent", "--ignore-scripts", f"{package}@{version}"]
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return folder / f"{package}-{version}.tgz"


def copy(archive: Path, files: list[dict[str, str]]) -> None:
    """Copy the files from the archive, and record their SHA-256 digests in `files`."""
    with tarfile.open(archive) as contents:
        for file in files:
            source = contents.extractfile(f"package/{file['source']}")
            if source is None:
                raise SystemExit(f"{archive.name} has no file {file['source']}: correct `source` in {LIST}.")
            content = source.read(MAX_FILE_BYTES)
            (FOLDER / file["name"]).write_bytes(content)
            file["sha256"] = hashlib.sha256(content).hexdigest()


def main(arguments: list[str]) -> None:
    """Fetch all packages, verify their integrity hashes, and copy their files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", metavar="PACKAGE@VERSION", help="use another version of one package")
    name, _, version = (parser.parse_args(arguments).update or "").partition("@")
    packages: list[dict[str, Any]] = json.loads(LIST.read_text("utf-8"))
    if name and (not version or name not in {package["package"] for package in packages}):
        raise SystemExit(f"--update needs a package of {LIST} and a version, as in preact@11.3.0.")
    with tempfile.TemporaryDirectory() as folder:
        for package in packages:
            if package["package"] == name:
                package["version"] = version
            archive = pack(package["package"], package["version"], Path(folder))
            integrity = integrity_of(archive)
            if package["package"] == name:
                package["integrity"] = integrity
            elif package["integrity"] != integrity:
                raise SystemExit(f"{package['package']} {package['version']} differs from its `integrity` in {LIST}.")
            copy(archive, package["files"])
    LIST.write_text(json.dumps(packages, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
