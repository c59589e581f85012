"""Logins that `rlrun login` keeps on this machine: URL of rlrun-server and API key, for each context of a kubeconfig.

The file can be read by its owner only. No message of this module contains a key.
"""

import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rlrun_cli.terminal.errors import CliError

FOLDER_VARIABLE = "XDG_CONFIG_HOME"
NO_CONTEXT = "without a kubeconfig"
"""Name of the login of a machine that has no kubeconfig."""


@dataclass(frozen=True)
class StoredLogin:
    """Server and credential of one context."""

    server: str = ""
    """URL of rlrun-server. Empty: as the platform has published it in the cluster."""
    key: str = ""
    """API key. Empty: the token of the kubeconfig is used."""
    key_id: str = ""
    """Id of a key that the login has made, and that a logout deletes."""
    namespace: str = ""
    """Namespace of the key."""


def logins_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file."""
    folder = environ.get(FOLDER_VARIABLE)
    return (Path(folder) if folder else Path("~/.config").expanduser()) / "rlrun" / "logins.json"


def find_login(name: str) -> StoredLogin | None:
    """Return the login of a context, or None. Raises CliError if the file cannot be read."""
    if not name:
        return None
    entry = _read().get(name)
    if not isinstance(entry, dict):
        return None
    return StoredLogin(**{field: str(entry.get(field) or "") for field in asdict(StoredLogin())})


def keep_login(name: str, login: StoredLogin | None) -> None:
    """Keep the login of a context, or remove it with None. Raises CliError if the file cannot be written."""
    logins = {key: value for key, value in _read().items() if key != name}
    if login is not None:
        logins[name] = asdict(login)
    file = logins_file()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Files of tempfile can be read by their owner only, from their first byte on.
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as written:
            json.dump(logins, written, indent=2)
        os.replace(written.name, file)
    except OSError as problem:
        raise CliError(
            f"{file} cannot be written: {problem.strerror}", f"name another folder in {FOLDER_VARIABLE}"
        ) from problem


def _read() -> dict[str, Any]:
    file = logins_file()
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as problem:
        raise CliError(f"{file} cannot be read: {type(problem).__name__}", "delete it, and log in again") from problem
    return document if isinstance(document, dict) else {}
