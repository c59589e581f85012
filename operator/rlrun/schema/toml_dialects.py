"""Keys of neighbouring dialects of the TOML schema, turned into this one's before validation.

Self-managed trainers know more keys than the hosted service. Those that mean something this schema can say are
translated; the others are refused unless they ask for nothing, because a setting that is read and ignored costs a
training run.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from rlrun.schema.problems import FieldProblem, unknown_field

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


def _warmup_steps(result: Translation, value: Any) -> None:
    if value != 0:
        result.refuse("warmup_steps", "warm-up is set by the platform, for the trainer as a whole: remove it")


def _gradient_accumulation_steps(result: Translation, value: Any) -> None:
    # Whole batches of batch_size rollouts make a step here, whatever the number of passes, so every value is kept to.
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        result.refuse("gradient_accumulation_steps", "must be a whole number of at least 1, or left out")


def _lora(result: Translation, value: Any) -> None:
    section = _section(result, "lora", value, ("enabled", "r", "alpha", "dropout", "target_modules"))
    if section.get("enabled", True) is not True:
        result.refuse("lora.enabled", "training is always by LoRA here: remove it, or set it to true")
    if "alpha" in section:
        if "lora_alpha" in result.table:
            result.refuse("lora.alpha", "says the same as lora_alpha: use one of them")
        result.table["lora_alpha"] = section["alpha"]
        result.origins["lora_alpha"] = "lora.alpha"
    for key in ("r", "dropout", "target_modules"):
        if key in section:
            result.refuse(
                f"lora.{key}", "belongs to the model, which the platform describes (`kubectl get rlmodels`): remove it"
            )


def _difficulty_filter(result: Translation, value: Any) -> None:
    keys = ("enabled", "min_reward_variance", "max_reward", "min_reward")
    section = _section(result, "difficulty_filter", value, keys)
    if "buffer" in result.table:
        result.refuse("difficulty_filter", "says the same as [buffer]: use one of them")
        return
    if section.get("min_reward_variance", 0) != 0:
        result.refuse(
            "difficulty_filter.min_reward_variance",
            "is not offered: groups whose rewards are all equal never train; use max_reward and min_reward for more",
        )
    names = {
        "enabled": "online_difficulty_filtering",
        "max_reward": "easy_threshold",
        "min_reward": "hard_threshold",
    }
    result.table["buffer"] = {ours: section[theirs] for theirs, ours in names.items() if theirs in section}
    result.origins |= {f"buffer.{ours}": f"difficulty_filter.{theirs}" for theirs, ours in names.items()}


def _kl_penalty(result: Translation, value: Any) -> None:
    section = _section(result, "kl_penalty", value, ("enabled", "target_kl", "beta"))
    if section.get("enabled", True) is not False:
        result.refuse(
            "kl_penalty", "is not offered: remove it; a lower learning_rate or max_async_level keeps updates small"
        )


def _section(result: Translation, name: str, value: Any, known: tuple[str, ...]) -> Table:
    if not isinstance(value, dict):
        result.refuse(name, f"must be a table: write [{name}]")
        return {}
    for key in value:
        if key not in known:
            result.refuse(f"{name}.{key}", unknown_field(key, known))
    return value


_TOP_LEVEL: dict[str, Callable[[Translation, Any], None]] = {
    "warmup_steps": _warmup_steps,
    "gradient_accumulation_steps": _gradient_accumulation_steps,
    "lora": _lora,
    "difficulty_filter": _difficulty_filter,
    "kl_penalty": _kl_penalty,
}
