"""Translation of keys of related TOML dialects into those of this schema, before validation.

Self-managed trainers and hosted clients have other names for some keys (see `foreign_keys`).
"""

from dataclasses import dataclass, field
from typing import Any

from rlrun.api.base.field_errors import FieldProblem

Table = dict[str, Any]


@dataclass(frozen=True)
class Synonym:
    """Key of other trainers that has another name in this schema."""

    section: str
    key: str
    target: str
    """Path of the equivalent key: at the top level, or in the same section."""
    inverted: bool = False
    """True if the equivalent key has the opposite value, true or false."""

    @property
    def path(self) -> str:
        """Path of the key in the file."""
        return f"{self.section}.{self.key}"


SYNONYMS = (
    Synonym("lora", "alpha", "lora_alpha"),
    Synonym("lora", "r", "lora.rank"),
    Synonym("eval", "skip_first_step", "eval.eval_base_model", inverted=True),
)
REINFORCEMENT_LEARNING = "rl"
"""Value of `loss` in files of hosted clients for runs that learn from rewards, as runs do by default."""


@dataclass
class Translation:
    """Table with the keys of this schema, and the problems of translating it."""

    table: Table
    problems: list[FieldProblem] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    """Path in the file of each translated path in `table`."""


def translate(table: Table) -> Translation:
    """Return a translated copy of the table. Values of a wrong type are left to validation."""
    result = Translation(dict(table))
    if result.table.get("loss") == REINFORCEMENT_LEARNING:
        del result.table["loss"]
    for section in dict.fromkeys(synonym.section for synonym in SYNONYMS):
        if section in result.table:
            _translate_section(result, section)
    return result


def _translate_section(result: Translation, section: str) -> None:
    value = result.table[section]
    if not isinstance(value, dict):
        result.problems.append(FieldProblem(section, f"must be a table: write [{section}]"))
        value = {}
    result.table[section] = dict(value)
    for synonym in SYNONYMS:
        if synonym.section == section and synonym.key in value:
            _translate_key(result, synonym)


def _translate_key(result: Translation, synonym: Synonym) -> None:
    parent, _, key = synonym.target.rpartition(".")
    destination = result.table[parent] if parent else result.table
    if key in destination:
        message = f"has the same meaning as {synonym.target}: use only one of them"
        result.problems.append(FieldProblem(synonym.path, message))
    value = result.table[synonym.section].pop(synonym.key)
    destination[key] = not value if synonym.inverted and isinstance(value, bool) else value
    result.origins[synonym.target] = synonym.path
