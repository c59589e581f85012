"""Translates related TOML dialects to this schema, before validation.

Self-managed trainers and the clients of Prime Intellect's hosted service use different names for some keys, and have
settings that this schema lacks. This module applies the tables in `dialect_keys`.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from rlrun.api.base.field_errors import MAX_COMPARED, MAX_SUGGESTIONS, FieldProblem, fields_at, path_of
from rlrun.api.base.names import split_version
from rlrun.api.run import RLRunSpec
from rlrun.api.toml.async_level import MOST_OVERSAMPLING, fit_async_level, oversampling_for
from rlrun.api.toml.dialect_key import DialectKey
from rlrun.api.toml.dialect_keys import FOR_EVALUATION, HOSTED, SELF_MANAGED
from rlrun.api.toml.prime_rl_keys import DEFAULTS, OTHER_OPTIMIZER, PRIME_RL, is_prime_rl, is_run

Table = dict[str, Any]
Place = tuple[str | int, ...]
"""Location of a value in a table: keys and list indexes."""
SMALLEST = RLRunSpec.model_validate(
    {"model": "a/b", "env": [{"id": "a/b"}], "eval": {"env": [{"id": "a/b"}]}}
).model_dump(mode="json", by_alias=False)
"""Run in which every optional key has its default."""
NAME_WITHOUT_OWNER = r"[A-Za-z0-9][A-Za-z0-9._-]*((@|==)[A-Za-z0-9.!+_-]*)?"
"""Pattern of an environment's id without an owner, with or without a version."""
MAX_NAMED = 16
"""Number of environments in a list that can get generated names. Validation refuses longer lists."""
NEUTRAL = {"sampling.top_p": 1.0}
"""Values that have the same effect as leaving the key unset, for keys without a default."""
TABLES = ("lora", "eval")
"""Sections that must be tables in a file. Any other value is reported as a problem."""


@dataclass
class Translation:
    """Result of a translation: a table with the keys of this schema, and the problems and notes found."""

    table: Table
    problems: list[FieldProblem] = field(default_factory=list)
    notes: list[FieldProblem] = field(default_factory=list)
    """Notes about keys that have no effect and about adapted values, with the reason."""
    origins: dict[str, str] = field(default_factory=dict)
    """Path in the file, by the translated path in `table`."""

    def origin(self, path: str) -> str:
        """Return the path in the file that corresponds to `path` in `table`."""
        above = path
        while above and above not in self.origins:
            above = above[: max(above.rfind("."), above.rfind("["), 0)]
        return self.origins[above] + path[len(above) :] if above else path

    def renames(self) -> dict[str, str]:
        """Map the name of each renamed field to its name in the file. Names without an underscore are omitted, because
        they may be ordinary words in a message.
        """
        names = ((here.rpartition(".")[2], there.rpartition(".")[2]) for here, there in self.origins.items())
        return {here: there for here, there in names if "_" in here and here != there}


def translate(table: Table, owner: str | None = None) -> Translation:
    """Return a translated copy of the table. Values of the wrong type are kept for validation.

    `owner` completes ids of environments without an owner. If `owner` is None, such ids are unchanged.
    """
    theirs = is_prime_rl(table)
    rows = {key.key: key for key in (*SELF_MANAGED, *HOSTED, *FOR_EVALUATION, *(PRIME_RL if theirs else ()))}
    result = _FileTranslator(rows.values()).read(table)
    if is_run(table):
        _set_defaults(result)
    for name, entries in _lists_of_environments(result.table).items():
        if owner:
            _set_owner(result, name, entries, owner)
        _set_names(result, name, entries)
    if note := fit_async_level(result.table):
        result.notes.append(note)
    return result


@dataclass(frozen=True)
class _Found:
    """Value in the file, with the row that applies to it."""

    row: DialectKey
    at: Place
    """Location of the row's key: the location of the value, or of a table or list that contains it."""
    place: Place
    value: Any

    @property
    def path(self) -> str:
        return path_of(self.place)

    @property
    def depends_on_others(self) -> bool:
        """True if the result depends on other keys of the file, which must be translated first."""
        return self.row.is_default or self.row.same_as is not None or self.row.divisor is not None

    def target(self) -> Place:
        """Return the location of the equivalent, with the list indexes from the file."""
        positions = iter(part for part in self.at if isinstance(part, int))
        place: list[str | int] = []
        for part in (self.row.equivalent or "").split("."):
            place.append(part.removesuffix("[]"))
            if part.endswith("[]") and (position := next(positions, None)) is not None:
                place.append(position)
        return (*place, *self.place[len(self.at) :])


@dataclass
class _Node:
    """Node in the tree of the rows' keys."""

    row: DialectKey | None = None
    below: dict[str, "_Node"] = field(default_factory=dict)

    def add(self, row: DialectKey) -> None:
        node = self
        for part in row.key.split("."):
            node = node.below.setdefault(part, _Node())
        node.row = row


def _below(nodes: Iterable[_Node], name: str) -> list[_Node]:
    """Return the child nodes for a key. Nodes with the key's exact name come before wildcards."""
    return [node.below[part] for node in nodes for part in (name, "*") if part in node.below]


class _FileTranslator:
    """Translator of one file."""

    def __init__(self, rows: Iterable[DialectKey]) -> None:
        self._root = _Node()
        self._names: dict[str, list[str]] = {}
        for row in rows:
            above, _, name = row.key.rpartition(".")
            self._names.setdefault(above, []).append(name)
            if row.key != row.equivalent:
                self._root.add(row)
        self._found: list[_Found] = []
        self._result = Translation({})

    def read(self, table: Table) -> Translation:
        """Return the translation. Reads keys of this schema first, so that a conflict is reported at the other key."""
        for key, value in table.items():
            self._walk(value, (key,), _below([self._root], key), None, ())
        for found in sorted(self._found, key=lambda found: found.depends_on_others):
            self._apply(found)
        return self._result

    def _walk(self, value: Any, place: Place, nodes: list[_Node], inherited: DialectKey | None, at: Place) -> None:
        """Collect the rows for a value and for the values that it contains. `nodes` belong to the value's own key.
        `inherited` is the row of the closest enclosing key, which is at `at`.
        """
        row = next((node.row for node in nodes if node.row is not None), None)
        if row is not None and not (row.is_for_text and isinstance(value, dict)):
            inherited, at = row, place
        if not any(node.below for node in nodes) or not _is_section(value):
            if inherited is not None:
                self._found.append(_Found(inherited, at, place, value))
            elif len(place) == 1 and place[0] in TABLES and not isinstance(value, dict):
                self._problem(place, f"must be a table: write [{place[0]}]")
                _put(self._result.table, place, {})
            else:
                _put(self._result.table, place, value)
            return
        if isinstance(value, dict):
            self._open(value, place, inherited, at)
            for name, below in value.items():
                self._walk(below, (*place, name), _below(nodes, name), inherited, at)
        else:
            for position, entry in enumerate(value):
                self._walk(entry, (*place, position), nodes, inherited, at)

    def _open(self, value: Table, place: Place, row: DialectKey | None, at: Place) -> None:
        """Create the section in the result, even if all its keys are translated to other sections."""
        section = _Found(row, at, place, {}) if row is not None and row.equivalent else None
        if row is not None and section is None:
            return
        names = [part for part in (section.target() if section else place) if isinstance(part, str)]
        if value and not fields_at(RLRunSpec, names, by_name=True):
            return
        if section:
            self._found.append(section)
        else:
            _put(self._result.table, place, {})

    def _apply(self, found: _Found) -> None:
        row, value = found.row, found.value
        if row.elsewhere is not None and isinstance(value, str) and value in row.elsewhere:
            path, there = row.elsewhere[value]
            self._set(replace(found, row=DialectKey(row.key, path, values={value: there})))
            return
        if any(value == accepted and type(value) is type(accepted) for accepted in row.accepted):
            return
        if row.same_as is not None:
            place = row.same_as.split(".")
            is_free = row.equivalent is not None and _get(self._result.table, place) is None
            if not is_free and self._is_repeated(place, value):
                return
            if not is_free:
                self._problem(found.place, row.remark)
                return
        if row.is_ignored:
            if value != {}:
                self._result.notes.append(FieldProblem(found.path, f"ignored: {row.remark}"))
        elif row.equivalent is None or (row.values is not None and value not in (*row.values, {})):
            self._problem(found.place, self._suggestion(found) or row.remark)
        else:
            self._set(found)

    def _suggestion(self, found: _Found) -> str | None:
        """Return the message for a key that is probably misspelled, or None if no known key is similar."""
        section, _, any_name = found.row.key.rpartition(".")
        name = found.at[-1]
        if any_name != "*" or not isinstance(name, str) or len(self._result.problems) >= MAX_SUGGESTIONS:
            return None
        near = difflib.get_close_matches(name[:MAX_COMPARED].lower(), self._names[section], n=1, cutoff=0.8)
        return f"unknown key; did you mean {near[0]}?" if near else None

    def _is_repeated(self, place: list[str], value: Any) -> bool:
        """Return whether the run already has this value at the location, from the file or by default."""
        present = _get(self._result.table, place)
        if present is None:
            present = NEUTRAL.get(".".join(place), _get(SMALLEST, place))
        return bool(present == value)

    def _set(self, found: _Found) -> None:
        row, value, place = found.row, found.value, found.target()
        if row.values is not None and value != {}:
            value = row.values[value]
        if row.is_inverted and isinstance(value, bool):
            value = not value
        if row.convert is not None and type(value) in (int, float):
            value = round(row.convert(value), 12)
            note = f"{found.value} becomes {path_of(place)} {value:g} in rlrun"
            self._result.notes.append(FieldProblem(found.path, note))
        if row.divisor is not None:
            value = oversampling_for(value, self._result.table)
            if value is None:
                self._problem(found.place, f"must be a whole number from 1 to {MOST_OVERSAMPLING} times {row.divisor}")
                return
        present = _get(self._result.table, place)
        if value == {} and present is not None:
            return
        if row.is_default and present is not None:
            _put(self._result.table, found.place, value)
            return
        path = path_of(place)
        other = self._result.origins.get(path, path)
        # Several keys of the other dialect may repeat one value, but they must not repeat a key of this schema.
        if present is not None and (present != value or other == path):
            self._problem(found.place, f"has the same meaning as {other}: use only one of them")
            return
        _put(self._result.table, place, value)
        self._result.origins.setdefault(path, found.path)

    def _problem(self, place: Place, message: str) -> None:
        self._result.problems.append(FieldProblem(path_of(place), message))


def _is_section(value: Any) -> bool:
    """Return whether the value contains keys to which rows can apply: a table, or a list of tables."""
    return isinstance(value, dict) or (
        isinstance(value, list) and bool(value) and all(isinstance(entry, dict) for entry in value)
    )


def _get(table: Any, place: Iterable[str | int]) -> Any:
    """Return the value at a location, or None if there is no value."""
    for part in place:
        try:
            table = table[part]
        except (KeyError, IndexError, TypeError):
            return None
    return table


def _put(table: Table, place: Place, value: Any) -> None:
    """Set the value at a location. Creates missing parents. Does nothing if a parent has another type."""
    here: Any = table
    for part, following in zip(place, [*place[1:], None], strict=True):
        if isinstance(here, list) and isinstance(part, int):
            here += [{} for _ in range(part + 1 - len(here))]
        elif not isinstance(here, dict) or not isinstance(part, str):
            return
        if following is None:
            here[part] = value
        elif isinstance(here, dict):
            here = here.setdefault(part, [] if isinstance(following, int) else {})
        else:
            here = here[part]


def _set_defaults(result: Translation) -> None:
    """Set prime-rl's defaults for missing keys. As in prime-rl, if any environment has a weight, the weights of the
    others default to 1.
    """
    table, sections = result.table, set(result.table)
    for default in DEFAULTS:
        place: Place = tuple(default.key.split("."))
        is_needed = default.section is None or default.section in sections
        is_needed = is_needed and (not default.of or table.get(default.section or "") in default.of)
        if is_needed and default.without not in sections and _get(table, place) is None:
            _put(table, place, default.value)
            result.origins[default.key] = default.origin
    if "max_steps" not in table:
        steps = RLRunSpec.model_fields["max_steps"].default
        message = f"is not set: the run ends after {steps} steps, whereas prime-rl has no limit"
        result.notes.append(FieldProblem("max_steps", message))
    if isinstance(table.get("eval"), dict) and not table["eval"].get("env"):
        del table["eval"]
        result.notes.append(FieldProblem("orchestrator.eval", "ignored: it has no source"))
    if "eval" in table:
        message = "unset keys default to the values of sampling; in prime-rl, they default to the engine's values"
        result.notes.append(FieldProblem("orchestrator.eval.sampling", message))
    if _get(table, ("sampling", "max_tokens")) is None:
        message = (
            "is not set: completions are limited to defaultMaxTokens of the RLModel, whereas prime-rl uses the whole "
            "context"
        )
        result.notes.append(FieldProblem("orchestrator.train.sampling.max_completion_tokens", message))
    result.notes.append(FieldProblem("trainer.optim", OTHER_OPTIMIZER))
    environments = table.get("env")
    entries = [e for e in environments if isinstance(e, dict)] if isinstance(environments, list) else []
    if any("weight" in entry for entry in entries):
        for entry in entries:
            entry.setdefault("weight", 1.0)


def with_owner(identifier: Any, owner: str | None) -> Any:
    """Return the id of an environment, with `owner` prepended if the id has no owner."""
    is_name = isinstance(identifier, str) and re.fullmatch(NAME_WITHOUT_OWNER, identifier)
    return f"{owner}/{identifier}" if owner and is_name else identifier


def _lists_of_environments(table: Table) -> dict[str, list[Table]]:
    """Return the lists of environments by path. Lists with entries other than tables are omitted; validation reports
    them.
    """
    lists = {"env": table.get("env"), "eval.env": _get(table, ("eval", "env"))}
    return {
        name: entries
        for name, entries in lists.items()
        if isinstance(entries, list) and all(isinstance(entry, dict) for entry in entries)
    }


def _set_owner(result: Translation, name: str, entries: list[Table], owner: str) -> None:
    for position, entry in enumerate(entries):
        given = entry.get("id")
        if given != (owned := with_owner(given, owner)):
            entry["id"] = owned
            path = result.origin(f"{name}[{position}].id")
            result.notes.append(FieldProblem(path, f"has no owner: the owner {owner} is used"))


def _set_names(result: Translation, name: str, entries: list[Table]) -> None:
    """Give entries with the same default name distinct names, so that metrics and logs distinguish them."""
    used = {str(entry["name"]) for entry in entries if "name" in entry}
    for position, entry in enumerate(entries[:MAX_NAMED]):
        identifier = entry.get("id")
        if "name" in entry or not isinstance(identifier, str):
            continue
        base = split_version(identifier)[0].rpartition("/")[2]
        chosen = next(n for n in (base, *(f"{base}-{number}" for number in range(2, MAX_NAMED + 3))) if n not in used)
        used.add(chosen)
        if chosen != base and base:
            entry["name"] = chosen
            result.notes.append(
                FieldProblem(f"{name}[{position}].name", f"is set to {chosen}, because another entry is named {base}")
            )


def group_by_reason(notes: Iterable[FieldProblem]) -> Iterator[str]:
    """Yield one line per distinct message, with the paths of all notes that have this message."""
    keys: dict[str, list[str]] = {}
    for note in notes:
        keys.setdefault(note.message, []).append(note.path)
    return (f"{', '.join(paths)}: {message}" for message, paths in keys.items())
