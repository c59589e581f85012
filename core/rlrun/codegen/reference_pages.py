"""The schema as pages for people: docs/reference/*.md, one table per kind and part.

python -m rlrun.codegen.reference_pages             write docs/reference/*.md
python -m rlrun.codegen.reference_pages --check     fail if they differ from the schema
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.api.base.names import snake, snake_words
from rlrun.api.metric_catalog import SECTIONS
from rlrun.codegen.crd import KINDS, CrdKind, crd
from rlrun.codegen.generated_files import update
from rlrun.codegen.openapi import INT_OR_STRING, PRESERVE, VALIDATIONS
from rlrun.codegen.reason_catalog import CONDITIONS, Entry, Section
from rlrun.codegen.reason_catalog import SECTIONS as REASON_SECTIONS
from rlrun.constants import GROUP, VERSION, ConditionType, Reason

NOTE = "<!-- Generated from operator/rlrun/schema by `python -m rlrun.codegen.reference_pages`; change the schema. -->"

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
    """Every field below an object's schema, sections before their fields."""
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
    """(path of the field, message) of every rule of a field, between fields, and about updates."""
    for rule in schema.get(VALIDATIONS, ()):
        yield f"{path}{rule.get('fieldPath', '')}", rule["message"]
    for name, field in schema.get("properties", {}).items():
        below = field.get("items", field) if field.get("type") == "array" else field
        yield from rules(below, f"{path}.{name}" + ("[]" if field.get("type") == "array" else ""))


def page(kind: CrdKind) -> str:
    """The reference of one kind."""
    definition = crd(kind)["spec"]
    version = definition["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    spec, status = schema["properties"]["spec"], schema["properties"]["status"]
    names = definition["names"]
    lines = [
        f"# {kind.name}",
        "",
        NOTE,
        "",
        schema["description"],
        "",
        f"`{GROUP}/{VERSION}`, {'namespaced' if kind.namespaced else 'for the whole cluster'}; "
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
        lines += ["## Rules", "", "Besides the limits above, the API server checks:", ""]
        lines += _table(("Field", "Rule"), [(f"`{path.lstrip('.')}`", message) for path, message in found])
        lines += [""]
    lines += ["## status", "", status["description"], "", *_status_table(status), ""]
    lines += ["## Columns", "", "What `kubectl get` shows; those marked wide need `-o wide`.", ""]
    lines += _table(
        ("Column", "From", "What"),
        [(c.name + (" (wide)" if c.wide else ""), f"`{c.path.lstrip('.')}`", c.description) for c in kind.columns],
    )
    return "\n".join(lines) + "\n"


def toml_page() -> str:
    """The reference of the TOML file: the spec of an RLRun in snake_case."""
    kind = next(k for k in KINDS if k.name == "RLRun")
    spec = crd(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    lines = [
        "# The TOML file of a run",
        "",
        NOTE,
        "",
        "The fields of RLRun's spec in snake_case. `env` is a list of tables (`[[env]]`, then `[env.args]`), and so is",
        "`eval.env`. `env_file` lists files of NAME=value lines, relative to the TOML file, whose variables reach the",
        "environments. In environments, `id` may end in `@version`.",
        "",
    ]
    table = [
        (
            f"`{snake(row.path)}`",
            row.type + (", required" if row.required else ""),
            _code(row.default),
            row.limits,
            snake_words(row.description),
        )
        for row in rows(spec)
    ]
    lines += _table(("Key", "Type", "Default", "Limits", "What"), table)
    lines += [
        "",
        "## Keys of self-managed trainers",
        "",
        *_table(
            ("Key", "What happens"),
            [
                ("`[lora] alpha`", "read as `lora_alpha`"),
                ("`[lora] enabled`", "must be true"),
                ("`[lora] r`, `dropout`, `target_modules`", "refused: they belong to the model (RLModel)"),
                ("`[difficulty_filter] enabled`", "read as `buffer.online_difficulty_filtering`"),
                ("`[difficulty_filter] max_reward`, `min_reward`", "read as `buffer.easy_threshold`, `hard_threshold`"),
                ("`[difficulty_filter] min_reward_variance`", "must be 0; groups of equal rewards never train"),
                ("`gradient_accumulation_steps`", "accepted: a step is a whole batch in any case"),
                ("`warmup_steps`", "must be 0; the platform sets the warm-up"),
                ("`[kl_penalty]`", "refused unless `enabled = false`"),
            ],
        ),
    ]
    return "\n".join(lines) + "\n"


def metrics_page() -> str:
    """The reference of all metrics."""
    lines = [
        "# The metrics of a run",
        "",
        NOTE,
        "",
        "Three places have them, under the same names:",
        "",
        "- S3, below `metrics/` of the run: files of JSON lines, each with `step`, `time` and its metrics. A trained",
        "  step has one line, each finished evaluation another one under the step that it measured. Files sort by",
        "  time; merge the lines of a step, the later one wins.",
        "- Prometheus, `/metrics` of the orchestrator, port 8080: the newest value of each number, `reward/mean` as",
        "  `rlrun_reward_mean`, and the histogram `rlrun_reward` per environment.",
        "- Weights & Biases, with `spec.wandb`; `step` is a metric there, and the x axis. Without a key the files of",
        "  an offline run are below `wandb/` of the run in S3, for `wandb sync`.",
        "",
        "`<environment>`, `<name>` and `<cause>` stand for names, `<k>` for a number, `<spread>` for each of `mean`,",
        "`max` and `min`. A metric without a value in a step is not in its line.",
        "",
    ]
    for section in SECTIONS:
        lines += [f"## {section.title}", "", *([section.text, ""] if section.text else [])]
        lines += _table(("Metric", "Unit", "What"), [(f"`{m.name}`", m.unit, m.text) for m in section.metrics])
        lines += [""]
    lines += [
        "## Prometheus of the trainer",
        "",
        "`/metrics` of the trainer, port 8080, one label `session`: `trainer_step`, `trainer_loss`,",
        "`trainer_throughput_tokens_per_sec`, `trainer_last_step_timestamp_seconds`, `trainer_step_seconds`,",
        "`trainer_grad_norm`, `trainer_learning_rate`, `trainer_entropy`, `trainer_mismatch_kl`,",
        "`trainer_kl_ent_ratio`, `trainer_mfu_percent` and `trainer_peak_memory_gib`.",
    ]
    return "\n".join(lines) + "\n"


def conditions_page() -> str:
    """The page of conditions and reasons."""
    lines = [
        "# Conditions and reasons",
        "",
        NOTE,
        "",
        "`kubectl describe` and `rlrun get` show the conditions of a run. A condition is True, False or absent; its",
        "reason is one word for programs, its message says what happened and what to do. `status.reason` of a run is",
        "the reason that matters most now. A rule of `failurePolicy` can name reasons of failures.",
        "",
        "## Conditions",
        "",
    ]
    lines += _table(
        ("Condition", "Of", "True means", "Reasons when True", "Reasons when False"),
        [(f"`{c.type}`", c.kind, c.meaning, _reasons(c.when_true), _reasons(c.when_false)) for c in CONDITIONS],
    )
    for section in REASON_SECTIONS:
        lines += ["", f"## {section.title}", "", *([section.text, ""] if section.text else [])]
        lines += _table(("Reason", "Meaning", "What to do"), [_reason_row(entry) for entry in section.entries])
    return "\n".join(lines) + "\n"


def _reasons(named: Sequence[Reason | Section | ConditionType]) -> str:
    return ", ".join(_reason_words(one) for one in named)


def _reason_words(one: Reason | Section | ConditionType) -> str:
    if isinstance(one, Section):
        return f"[{one.title}](#{one.anchor})"
    return f"those of `{one}`" if isinstance(one, ConditionType) else f"`{one}`"


def _reason_row(entry: Entry) -> tuple[str, str, str]:
    return f"`{entry.reason}`", entry.meaning, entry.action


def render() -> dict[str, str]:
    """File name -> text of every page."""
    pages = {f"{kind.name.lower()}.md": page(kind) for kind in KINDS}
    pages["toml.md"] = toml_page()
    pages["metrics.md"] = metrics_page()
    pages["conditions.md"] = conditions_page()
    index = ["# Reference", "", NOTE, ""]
    index += [f"- [{kind.name}]({kind.name.lower()}.md): {kind.model.__doc__}" for kind in KINDS]
    index += [
        "- [The TOML file of a run](toml.md)",
        "- [The metrics of a run](metrics.md)",
        "- [Conditions and reasons](conditions.md)",
    ]
    return {"README.md": "\n".join(index) + "\n", **pages}


def _spec_table(schema: Json) -> list[str]:
    return _table(
        ("Field", "Type", "Default", "Limits", "What"),
        [
            (f"`{r.path}`", r.type + (", required" if r.required else ""), _code(r.default), r.limits, r.description)
            for r in rows(schema)
        ],
    )


def _status_table(schema: Json) -> list[str]:
    return _table(("Field", "Type", "What"), [(f"`{r.path}`", r.type, r.description) for r in rows(schema)])


def _table(head: tuple[str, ...], body: Sequence[tuple[str, ...]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in body),
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
    said = []
    if enum := field.get("enum"):
        said.append(", ".join(f"`{value}`" for value in enum))
    if "minimum" in field:
        said.append(f"{'>' if field.get('exclusiveMinimum') else '>='} {field['minimum']:g}")
    if "maximum" in field:
        maximum = field["maximum"]
        shown = f"{maximum:g}" if isinstance(maximum, float) else str(maximum)
        said.append(f"{'<' if field.get('exclusiveMaximum') else '<='} {shown}")
    for what, low, high in (
        ("characters", "minLength", "maxLength"),
        ("entries", "minItems", "maxItems"),
        ("keys", "minProperties", "maxProperties"),
    ):
        if field.get(low, 0) > 1 or (low == "minItems" and low in field):
            said.append(f"{what} >= {field[low]}")
        if high in field:
            said.append(f"{what} <= {field[high]}")
    if "pattern" in field:
        said.append(f"`{field['pattern']}`")
    return "; ".join(said)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def main() -> int:
    """Write or check the pages; 1 when a check finds a difference."""
    parser = argparse.ArgumentParser(
        prog="python -m rlrun.codegen.reference_pages", description="Generate the reference."
    )
    parser.add_argument("--check", action="store_true", help="only compare, and fail on a difference")
    parser.add_argument("--output", type=Path, default=Path("docs/reference"), help="folder of the pages")
    options = parser.parse_args()
    return update(options.output, render(), check=options.check, command="python -m rlrun.codegen.reference_pages")


if __name__ == "__main__":
    sys.exit(main())
