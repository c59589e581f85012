"""Reading the settings file. What is wrong in it is said at once, with the path of each field."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

import yaml
from pydantic import ValidationError

from rlrun.resources.settings import Settings

VARIABLE = "RLRUN_SETTINGS"
DEFAULT_PATH = Path("/etc/rlrun/settings.yaml")


class SettingsError(Exception):
    """The operator cannot start with these settings."""


def load_settings(environment: Mapping[str, str] = os.environ) -> Settings:
    """The settings in the file that RLRUN_SETTINGS names (YAML, or JSON). Raises SettingsError."""
    path = Path(environment.get(VARIABLE) or DEFAULT_PATH)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(
            f"cannot read the settings {path} ({error.strerror}): set {VARIABLE} to their path"
        ) from error
    return parse_settings(text, str(path))


def parse_settings(text: str, source: str = "settings") -> Settings:
    """The settings in YAML or JSON text. Raises SettingsError."""
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SettingsError(f"{source} is not valid YAML: {error}") from error
    if not isinstance(data, dict):
        raise SettingsError(f"{source} must be a table of settings; it is {json.dumps(data)[:80]}")
    try:
        return Settings.model_validate(data, by_alias=True, by_name=False)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc'])) or source}: {e['msg']}" for e in error.errors()]
        raise SettingsError(f"{source} has {len(lines)} mistakes:\n" + "\n".join(lines)) from error
