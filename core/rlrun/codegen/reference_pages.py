"""Reference pages in docs/reference, generated from the schema.

python -m rlrun.codegen.reference_pages             write docs/reference/*.md
python -m rlrun.codegen.reference_pages --check     fail if they differ from the schema
"""

import argparse
import json
import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlrun.api.base.field_errors import form_of
from rlrun.api.base.names import snake, snake_words
from rlrun.api.toml.dialect_key import DialectKey
from rlrun.api.toml.dialect_keys import HOSTED, SELF_MANAGED
from rlrun.api.toml.prime_rl_keys import DEFAULTS, EARLIER, PRIME_RL
from rlrun.codegen.crd import KINDS, CrdKind, complete_schema, crd
from rlrun.codegen.generated_files import update
from rlrun.codegen.openapi import INT_OR_STRING, PRESERVE, VALIDATIONS
from rlrun.constants import GROUP, VERSION

NOTE = "<!-- Generated from core/rlrun by `python -m rlrun.codegen.reference_pages`; change the schema. -->"

NO_STATUS_SCHEMA = (
    "`kubectl explain` shows only the names of these fields. The CRD has no schema for the status, because the API\n"
    "server would check every write against it; the operator checks what it writes."
)

Json = dict[str, Any]


@dataclass(frozen=True)
class Row:
    """One field of a kind."""

    path: str
    type: str
    required: bool
    default: str
    limits: str
    description: str


def rows(schema: Json, path: str = "") -> Iterator[Row]:
    """Yield every field of an object's schema, each section before its fields."""
    for name, field in schema.get("properties", {}).items():
        here = f"{path}.{name}" if path else name
        below = field.get("items", field) if field.get("type") == "array" else field
        plain_default = "default" in field and not isinstance(field["default"], dict)
        yield Row(
            here,
            _type(field),
            name in schema.get("required", ()),
            json.dumps(field["default"]) if plain_default else "",
            _limits(field),
            field["description"],
        )
        yield from rows(below, here + ("[]" if field.get("type") == "array" else ""))


def rules(schema: Json, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the message of every rule, which may concern one field, several fields or updates."""
    for rule in schema.get(VALIDATIONS, ()):
        yield f"{path}{rule.get('fieldPath', '')}", rule["message"]
    for name, field in schema.get("properties", {}).items():
        below = field.get("items", field) if field.get("type") == "array" else field
        yield from rules(below, f"{path}.{name}" + ("[]" if field.get("type") == "array" else ""))


def page(kind: CrdKind) -> str:
    """Return the reference page of one kind."""
    definition = crd(kind)["spec"]
    schema = complete_schema(kind)
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    names = definition["names"]
    lines = [
        f"# {kind.name}",
        "",
        NOTE,
        "",
        schema["description"],
        "",
        f"`{GROUP}/{VERSION}`, {'namespaced' if kind.namespaced else 'cluster-scoped'}; "
        f"`kubectl get {names['plural']}` or `{names['shortNames'][0]}`, and in the "
        f"{'categories' if len(kind.categories) > 1 else 'category'} "
        f"{' and '.join(f'`{c}`' for c in kind.categories)}.",
        "",
        "## spec",
        "",
        spec["description"],
        "",
        *_spec_table(spec),
        "",
    ]
    if found := [*rules({VALIDATIONS: schema.get(VALIDATIONS, ())}, ""), *rules(spec, "spec")]:
        lines += ["## Rules", "", "The API server also checks these rules:", ""]
        lines += _table(("Field", "Rule"), [(f"`{path.lstrip('.')}`", message) for path, message in found])
        lines += [""]
    lines += ["## status", "", status["description"], ""]
    if kind.is_written_often:
        lines += [NO_STATUS_SCHEMA, ""]
    lines += [*_status_table(status), ""]
    lines += ["## Columns", "", "Columns of `kubectl get`. Columns marked wide are shown only with `-o wide`.", ""]
    lines += _table(
        ("Column", "Source", "Description"),
        [(c.name + (" (wide)" if c.wide else ""), f"`{c.path.lstrip('.')}`", c.description) for c in kind.columns],
    )
    return "\n".join(lines) + "\n"


def toml_rows() -> Iterator[Row]:
    """Yield every key of the TOML file: the fields of an RLRun's spec in snake_case."""
    kind = next(k for k in KINDS if k.name == "RLRun")
    for row in rows(complete_schema(kind)["properties"]["spec"]):
        yield replace(row, path=snake(row.path), description=snake_words(row.description))


def toml_page() -> str:
    """Return the reference page of the TOML file: the spec of an RLRun in snake_case."""
    lines = [
        "# The TOML file of a run",
        "",
        NOTE,
        "",
        "The fields of RLRun's spec in snake_case. `env` and `eval.env` are arrays of tables (`[[env]]`, then",
        "`[env.args]`). `env_file` lists files of NAME=value lines, relative to the TOML file, whose variables are",
        "passed to the environments; `rlrun run --help` has their syntax. The `id` of an environment can end in",
        "`@version`. Any other key is refused as an unknown field, with the most similar key if any, or for the",
        "reason in the tables at the end.",
        "",
    ]
    table = [
        (
            f"`{row.path}`",
            row.type + (", required" if row.required else ""),
            _code(row.default),
            row.limits,
            row.description,
        )
        for row in toml_rows()
    ]
    lines += _table(("Key", "Type", "Default", "Limits", "Description"), table)
    lines += [
        "",
        "## Keys of self-managed trainers",
        "",
        "Keys in the documentation of self-managed trainers. Those with an equivalent are accepted under their own",
        "names; the others are refused with the reason given here. A file that has both a key and its equivalent is",
        "refused, because one has the same meaning as the other.",
        "",
        *_dialect_keys(SELF_MANAGED),
        "",
        "## Keys of hosted clients",
        "",
        "Keys in files for Prime Intellect's hosted service (clients prime 0.6.0 and 0.12.0) that are not in the table",
        "above or have another meaning. They follow the same rules. A `max_async_level` below `oversampling_factor` is",
        "raised to it with a note, because the hosted service no longer has this key. If the file does not set",
        "`oversampling_factor`, that default is lowered instead.",
        "",
        *_dialect_keys(HOSTED),
        "",
        "## Keys of prime-rl",
        "",
        *textwrap.wrap(_about_prime_rl(), 120, break_on_hyphens=False),
        "",
        *_dialect_keys([row for row in PRIME_RL if not row.key.startswith(tuple(f"{name}." for name in EARLIER))]),
    ]
    return "\n".join(lines) + "\n"


def _about_prime_rl() -> str:
    """Return the introduction to the keys of prime-rl."""
    defaults = ", ".join(f"`{d.origin}` {json.dumps(d.value)}" for d in DEFAULTS if d.without is None)
    earlier = ", ".join(f"`{earlier}` for `{name}`" for earlier, name in EARLIER.items())
    return (
        "Keys of prime-rl's own files, which have a table `orchestrator`. A row also applies to the keys below it, "
        "unless they have their own row; `*` matches any name. An ignored key causes a note on standard error, or "
        "over REST in the header `Warning`. Missing keys have prime-rl's defaults if these affect what is "
        f"learned or kept: {defaults}; if `trainer.model.lora` is missing, all weights are trained. Earlier names have "
        f"the same rows: {earlier}."
    )


def _dialect_keys(keys: Sequence[DialectKey]) -> list[str]:
    body = [(f"`{k.key}`", _equivalent(k), dialect_remark(k)) for k in keys]
    return _table(("Key", "Equivalent key", "Remark"), body)


def _equivalent(key: DialectKey) -> str:
    if key.equivalent:
        return f"`{key.equivalent}`"
    return "ignored" if key.is_ignored else "none"


def dialect_remark(key: DialectKey) -> str:
    """Return the key's remark, preceded by the values that are accepted."""
    if key.values:
        pairs = (
            there if there == here else f"{there} becomes {json.dumps(here)}" for there, here in key.values.items()
        )
        elsewhere = (f"{there} becomes `{path}` {here}" for there, (path, here) in (key.elsewhere or {}).items())
        return f"{', '.join([*pairs, *elsewhere])}; other values: {key.remark}"
    if key.accepted:
        return f"{' or '.join(json.dumps(value) for value in key.accepted)} is dropped; other values: {key.remark}"
    if key.same_as:
        return f"The value of `{key.same_as}` is dropped; other values: {key.remark}"
    return key.remark


def render() -> dict[str, str]:
    """Return the text of every page by file name."""
    pages = {f"{kind.name.lower()}.md": page(kind) for kind in KINDS}
    pages["toml.md"] = toml_page()
    index = ["# Reference", "", NOTE, ""]
    index += [f"- [{kind.name}]({kind.name.lower()}.md): {kind.model.__doc__}" for kind in KINDS]
    index += [
        "- [The TOML file of a run](toml.md)",
        "- [The metrics of a run](metrics.md)",
        "- [Conditions and reasons](conditions.md)",
        "- [The command line](cli.md)",
    ]
    return {"README.md": "\n".join(index) + "\n", **pages}


def _spec_table(schema: Json) -> list[str]:
    return _table(
        ("Field", "Type", "Default", "Limits", "Description"),
        [
            (f"`{r.path}`", r.type + (", required" if r.required else ""), _code(r.default), r.limits, r.description)
            for r in rows(schema)
        ],
    )


def _status_table(schema: Json) -> list[str]:
    return _table(("Field", "Type", "Description"), [(f"`{r.path}`", r.type, r.description) for r in rows(schema)])


def _table(head: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in row) + " |" for row in body),
    ]


def _type(field: Json) -> str:
    if field.get(INT_OR_STRING):
        return "quantity"
    kind = str(field["type"])
    if field.get(PRESERVE):
        return "object of any values"
    if kind == "array":
        return f"list of {_type(field['items'])}"
    if values := field.get("additionalProperties"):
        return f"map to {_type(values)}"
    return "time" if field.get("format") == "date-time" else kind


def _limits(field: Json) -> str:
    limits = []
    if enum := field.get("enum"):
        limits.append(", ".join(f"`{value}`" for value in enum))
    if "minimum" in field:
        limits.append(f"{'>' if field.get('exclusiveMinimum') else '>='} {field['minimum']:g}")
    if "maximum" in field:
        maximum = field["maximum"]
        shown = f"{maximum:g}" if isinstance(maximum, float) else str(maximum)
        limits.append(f"{'<' if field.get('exclusiveMaximum') else '<='} {shown}")
    for unit, low, high in (
        ("characters", "minLength", "maxLength"),
        ("entries", "minItems", "maxItems"),
        ("keys", "minProperties", "maxProperties"),
    ):
        if field.get(low, 0) > 1 or (low == "minItems" and low in field):
            limits.append(f"{unit} >= {field[low]}")
        if high in field:
            limits.append(f"{unit} <= {field[high]}")
    if "pattern" in field:
        limits.append(form_of(field["pattern"]))
    return "; ".join(limits)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


OTHERS = frozenset({"cli.md", "conditions.md", "metrics.md"})
"""Pages that are not generated here: the page of the command line, because core must not import that package, and pages
written by hand.
"""


def main() -> int:
    """Write or check the pages. Returns 1 if a check finds a difference."""
    parser = argparse.ArgumentParser(
        prog="python -m rlrun.codegen.reference_pages", description="Generate the reference."
    )
    parser.add_argument("--check", action="store_true", help="only compare, and exit with 1 if a page differs")
    parser.add_argument("--output", type=Path, default=Path("docs/reference"), help="folder of the pages")
    options = parser.parse_args()
    command = "python -m rlrun.codegen.reference_pages"
    return update(options.output, render(), check=options.check, command=command, others=OTHERS)


if __name__ == "__main__":
    sys.exit(main())
