"""Logins that `rlrun login` saves on this machine: rlrun-server's URL and an API key for each kubeconfig context.

Only the user can read the file. No message of this module contains a key.
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
"""Name of the login on a machine without a kubeconfig."""


@dataclass(frozen=True)
class StoredLogin:
    """Server and credential of one context."""

    server: str = ""
    """URL of rlrun-server. If empty, the URL published in the cluster is used."""
    key: str = ""
    """API key. If empty, the kubeconfig's token is used."""
    key_id: str = ""
    """Id of the key if the login created it, in which case `rlrun logout` deletes it."""
    namespace: str = ""
    """Namespace of the key."""


def logins_file(environ: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the file with the logins."""
    folder = environ.get(FOLDER_VARIABLE)
    return (Path(folder) if folder else Path("~/.config").expanduser()) / "rlrun" / "logins.json"


def find_login(name: str) -> StoredLogin | None:
    """Return the login for a context, or None if there is none. Raises CliError if the file cannot be read."""
    if not name:
        return None
    entry = _read().get(name)
    if not isinstance(entry, dict):
        return None
    return StoredLogin(**{field: str(entry.get(field) or "") for field in asdict(StoredLogin())})


def keep_login(name: str, login: StoredLogin | None) -> None:
    """Save the login for a context, or remove it if `login` is None.

    Raises CliError if the file cannot be read or written.
    """
    logins = {key: value for key, value in _read().items() if key != name}
    if login is not None:
        logins[name] = asdict(login)
    file = logins_file()
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Files of tempfile are readable only by their owner from the start.
        with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False, encoding="utf-8") as written:
            json.dump(logins, written, indent=2)
        os.replace(written.name, file)
    except OSError as problem:
        raise CliError(
            f"{file} cannot be written: {problem.strerror}", f"select another folder with {FOLDER_VARIABLE}"
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
