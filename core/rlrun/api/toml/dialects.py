"""Keys of neighbouring dialects of the TOML schema, turned into this one's before validation.

Self-managed trainers have other words for a few things; what this schema says in its own words is translated.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlrun.api.base.field_errors import FieldProblem

Table = dict[str, Any]


@dataclass
class Translation:
    """A table in this schema's words, what could not be translated, and where the words came from."""

    table: Table
    problems: list[FieldProblem] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    """Path in `table` -> path in the file."""

    def refuse(self, path: str, message: str) -> None:
        """Note a problem."""
        self.problems.append(FieldProblem(path, message))


def translate(table: Table) -> Translation:
    """Never raises; the input is not changed. Wrong types are left for validation to find."""
    result = Translation(dict(table))
    for key, handle in _TOP_LEVEL.items():
        if key in result.table:
            handle(result, result.table.pop(key))
    _environment_versions(result)
    return result


def _environment_versions(result: Translation) -> None:
    """`id = "owner/name@1.0"` -> id and version; a version of its own wins."""

    def split(entries: Any) -> Any:
        if not isinstance(entries, list):
            return entries
        return [_split_version(entry) if isinstance(entry, dict) else entry for entry in entries]

    if "env" in result.table:
        result.table["env"] = split(result.table["env"])
    evaluation = result.table.get("eval")
    if isinstance(evaluation, dict) and "env" in evaluation:
        result.table["eval"] = {**evaluation, "env": split(evaluation["env"])}


def _split_version(entry: Table) -> Table:
    identifier = entry.get("id")
    if not isinstance(identifier, str) or "@" not in identifier:
        return entry
    name, _, version = identifier.rpartition("@")
    return {**({"version": version} if version else {}), **entry, "id": name}


def _lora(result: Translation, value: Any) -> None:
    """`r` is `lora.rank` here, and `alpha` the top-level `lora_alpha`."""
    section = dict(_section(result, "lora", value))
    if "alpha" in section:
        if "lora_alpha" in result.table:
            result.refuse("lora.alpha", "says the same as lora_alpha: use one of them")
        result.table["lora_alpha"] = section.pop("alpha")
        result.origins["lora_alpha"] = "lora.alpha"
    if "r" in section:
        if "rank" in section:
            result.refuse("lora.r", "says the same as lora.rank: use one of them")
        section["rank"] = section.pop("r")
        result.origins["lora.rank"] = "lora.r"
    result.table["lora"] = section


def _section(result: Translation, name: str, value: Any) -> Table:
    if not isinstance(value, dict):
        result.refuse(name, f"must be a table: write [{name}]")
        return {}
    return value


_TOP_LEVEL: dict[str, Callable[[Translation, Any], None]] = {"lora": _lora}
