"""Reads the requests with which clients of Prime Intellect's hosted service (prime 0.6.0 and 0.12.0) create runs:
`POST /rft/runs`.

As in the clients, numbers and booleans may be strings, and empty strings and nulls mean unset. Keys without an
equivalent here are refused with the reasons in `dialect_keys`. The keys of both versions are accepted in one request.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from rlrun.api.base.field_errors import MAX_SUGGESTIONS, FieldProblem, problems, unknown_field
from rlrun.api.base.names import split_version
from rlrun.api.base.received import MAX_FAULTS
from rlrun.api.run import RLRunSpec
from rlrun.api.toml.async_level import MOST_OVERSAMPLING, fit_async_level, oversampling_for
from rlrun.api.toml.dialect_keys import refusal
from rlrun.api.toml.dialects import with_owner

Location = tuple[str | int, ...]
Table = dict[str, Any]

SAMPLING = (
    "max_tokens",
    "temperature",
    "repetition_penalty",
    "min_tokens",
    "seed",
    "enable_thinking",
    "reasoning_effort",
)
"""Keys of a file's `sampling` section that a request has at its top level."""
TEMPLATE_VARIABLES = ("enable_thinking", "reasoning_effort")
REFUSED_SAMPLING = ("temp_scheduler",)
REFUSED = ("cluster_name", "run_config", "tailscale", "teacher", "post_batch_filters")
SAME = (
    "name",
    "max_steps",
    "batch_size",
    "rollouts_per_example",
    "learning_rate",
    "lora_alpha",
    "oversampling_factor",
    "max_async_level",
    "checkpoint_id",
    "val",
    "buffer",
    "checkpoints",
    "adapters",
)
"""Keys that have the same name and meaning in a request and in a run."""
MOVED = ("extra_body", "model", "environments", "eval", "monitoring", "compute_size", "secrets", "team_id")
TRANSLATED = ("loss", "max_inflight_rollouts", "pre_batch_filters")
ALL_KEYS = (*SAME, *MOVED, *TRANSLATED, *SAMPLING, *REFUSED_SAMPLING, *REFUSED)

ZERO_ADVANTAGE = "zero_advantage"
"""Type of the filter that drops groups without a training signal."""
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class RequestProblem:
    """Location of an invalid field in a request, and a message about it."""

    location: Location
    """Keys and indexes of the field: `("environments", 0, "id")`."""
    message: str
    """Description without square brackets, which the clients read as markup. Never contains the value of a secret."""


@dataclass(frozen=True)
class ClientRun:
    """Run that a request describes."""

    spec: RLRunSpec
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """Values of the environments' variables, by name. Not part of the spec."""
    team_id: str | None = None
    locate: Callable[[FieldProblem], RequestProblem] = field(
        default=lambda problem: RequestProblem(tuple(parts_of(problem.path)), plain(problem.message)), compare=False
    )
    """Function that converts a problem with a field of the spec to a problem with the request's field."""
    earlier_steps: int = 0
    """Number of steps of the earlier runs that this run continues. They do not count toward this run's own steps."""


def read_request(body: Any, owner: str | None = None) -> ClientRun | list[RequestProblem]:
    """Return the run that a request describes, or all problems of the request.

    `owner` completes ids of environments without an owner. If `owner` is None, such ids are refused.
    """
    if not isinstance(body, dict):
        return [RequestProblem((), "must be a JSON object")]
    return _RequestTranslator({key: value for key, value in body.items() if _is_set(value)}, owner).read()


class _RequestTranslator:
    """Translator of one request. `found` collects its problems."""

    def __init__(self, body: Table, owner: str | None) -> None:
        self.body = body
        self.owner = owner
        self.found: list[RequestProblem] = []
        self.origins: dict[str, Location] = {"env": ("environments",), "wandb": ("monitoring", "wandb")}
        """Location in the request of each translated key, by the key's path in the run."""

    def read(self) -> ClientRun | list[RequestProblem]:
        """Return the run, or all problems of the request."""
        for number, key in enumerate(sorted(self.body.keys() - set(ALL_KEYS))[:MAX_FAULTS]):
            self._refuse((key,), refusal(key) or unknown_field(key, ALL_KEYS, suggests=number < MAX_SUGGESTIONS))
        for key in (*REFUSED, *REFUSED_SAMPLING):
            if self.body.get(key) not in (None, [], {}):
                self._refuse((key,), refusal(key) or refusal(f"sampling.{key}") or "is not supported")
        table: Table = {key: self.body[key] for key in SAME if key in self.body}
        self._move_sections(table)
        self._translate(table)
        table = coerce(table, RLRunSpec)
        # The clients cannot show notes.
        fit_async_level(table)
        secrets = self._secrets()
        if not isinstance(self.body.get("team_id", ""), str):
            self._refuse(("team_id",), "must be a string")
        try:
            spec = RLRunSpec.model_validate(table, by_name=True, by_alias=False)
        except ValidationError as error:
            self.found += map(self._in_request, problems(error, RLRunSpec, by_name=True))
            return self.found
        return self.found or ClientRun(spec, secrets, self.body.get("team_id"), self._in_request)

    def _refuse(self, location: Location, message: str) -> None:
        self.found.append(RequestProblem(location, plain(message)))

    def _section(self, key: str) -> Table:
        value = self.body.get(key, {})
        if isinstance(value, dict):
            return dict(value)
        self._refuse((key,), "must be an object")
        return {}

    def _move_sections(self, table: Table) -> None:
        model = self._section("model")
        self.origins["model"] = ("model", "name")
        if "name" in model:
            table["model"] = model["name"]
        table["env"] = self._environments(self.body.get("environments", []), ("environments",))
        sampling = {key: self.body[key] for key in SAMPLING if key in self.body}
        self.origins |= {f"sampling.{key}": (key,) for key in SAMPLING}
        for key, value in self._template_variables().items():
            if sampling.setdefault(key, value) != value:
                location = ("extra_body", "chat_template_kwargs", key)
                self._refuse(location, f"has the same meaning as {key}: use only one of them")
        table["sampling"] = sampling
        if "compute_size" in self.body:
            table["infrastructure"] = {"compute_size": self.body["compute_size"]}
            self.origins["infrastructure.compute_size"] = ("compute_size",)
        wandb = self._section("monitoring").get("wandb")
        if wandb:
            table["wandb"] = wandb
        evaluation = self._section("eval")
        # As in the clients, an evaluation without environments means no evaluation.
        if environments := evaluation.pop("environments", None):
            table["eval"] = self._evaluation(evaluation, environments)

    def _template_variables(self) -> Table:
        """Return the chat template's variables from `extra_body`. Any other content of `extra_body` is reported as a
        problem.
        """
        body = self._section("extra_body")
        variables = body.get("chat_template_kwargs", {})
        is_known = isinstance(variables, dict) and set(variables) <= set(TEMPLATE_VARIABLES)
        if is_known and set(body) <= {"chat_template_kwargs"}:
            return {key: value for key, value in variables.items() if _is_set(value)}
        self._refuse(("extra_body",), refusal("sampling.extra_body") or "")
        return {}

    def _evaluation(self, evaluation: Table, environments: Any) -> Table:
        self.origins["eval.env"] = ("eval", "environments")
        skip = coerced_value(evaluation.pop("skip_first_step", None), bool)
        if skip is not None:
            self.origins["eval.eval_base_model"] = ("eval", "skip_first_step")
            evaluation["eval_base_model"] = not skip if isinstance(skip, bool) else skip
        entries = self._environments(environments, ("eval", "environments"))
        for entry in entries if isinstance(entries, list) else ():
            if isinstance(entry, dict) and "group_size" in entry and "rollouts_per_example" not in entry:
                entry["rollouts_per_example"] = entry.pop("group_size")
        return {**evaluation, "env": entries}

    def _environments(self, entries: Any, location: Location) -> Any:
        if not isinstance(entries, list):
            return entries
        return [self._environment(e, (*location, i)) if isinstance(e, dict) else e for i, e in enumerate(entries)]

    def _environment(self, given: Table, location: Location) -> Table:
        entry = {key: value for key, value in given.items() if _is_set(value)}
        identifier = entry.get("id")
        if isinstance(identifier, str):
            # The clients split ids themselves, and let an explicit version take precedence.
            package, version = split_version(identifier)
            entry = {**({"version": version} if version else {}), **entry, "id": package}
        taskset = entry.get("taskset")
        if "id" not in entry and isinstance(taskset, dict) and isinstance(taskset.get("id"), str):
            entry["id"] = taskset["id"]
            entry["taskset"] = {key: value for key, value in taskset.items() if key != "id"}
            path = "eval.env" if location[0] == "eval" else "env"
            self.origins[f"{path}[{location[-1]}].id"] = (*location, "taskset", "id")
        if "id" in entry:
            entry["id"] = with_owner(entry["id"], self.owner)
        if "ratio" in entry and location[0] == "environments":
            entry["weight"] = entry.pop("ratio")
            self.origins[f"env[{location[-1]}].weight"] = (*location, "ratio")
        for key in sorted(entry):
            is_rollouts = key == "group_size" and location[0] == "eval"
            if not is_rollouts and (why := refusal(f"env.{key}")):
                self._refuse((*location, key), why)
                del entry[key]
        return entry

    def _translate(self, table: Table) -> None:
        if self.body.get("loss", "rl") != "rl":
            self._refuse(("loss",), 'must be "rl"; for other objectives, start an RLRun with algorithm.name')
        filters = self.body.get("pre_batch_filters", [])
        for index, entry in enumerate(filters if isinstance(filters, list) else [filters]):
            kind, enforce = (entry.get("type"), entry.get("enforce")) if isinstance(entry, dict) else (None, None)
            if kind != ZERO_ADVANTAGE or coerced_value(enforce, bool) is not True:
                self._refuse(("pre_batch_filters", index), f"must have type {ZERO_ADVANTAGE} and enforce = true")
                continue
            table["difficulty_filter"] = {"enabled": True}
        self._translate_inflight(table)

    def _translate_inflight(self, table: Table) -> None:
        inflight = coerced_value(self.body.get("max_inflight_rollouts"), int)
        batch = coerced_value(table.get("batch_size", RLRunSpec.model_fields["batch_size"].default), int)
        if inflight is None:
            return
        location: Location = ("max_inflight_rollouts",)
        if "oversampling_factor" in table:
            self._refuse(location, "has the same meaning as oversampling_factor: use only one of them")
        elif isinstance(batch, int) and batch > 0:
            factor = oversampling_for(inflight, {"batch_size": batch})
            if factor is None:
                self._refuse(location, f"must be a whole number from 1 to {MOST_OVERSAMPLING} times batch_size")
                return
            table["oversampling_factor"] = factor
            self.origins["oversampling_factor"] = location

    def _secrets(self) -> dict[str, str]:
        secrets: dict[str, str] = {}
        entries = self.body.get("secrets", [])
        if not isinstance(entries, list):
            self._refuse(("secrets",), "must be a list")
            return secrets
        for index, entry in enumerate(entries):
            name, value = (entry.get("key"), entry.get("value")) if isinstance(entry, dict) else (None, None)
            if not isinstance(name, str) or not VARIABLE.fullmatch(name):
                message = "must be a name of letters, digits and _, not starting with a digit"
                self._refuse(("secrets", index, "key"), message)
            elif not isinstance(value, str):
                self._refuse(("secrets", index, "value"), "must be a string")
            else:
                secrets[name] = value
        return secrets

    def _in_request(self, problem: FieldProblem) -> RequestProblem:
        """Rename the field in a problem from the run's spelling to the request's."""
        longest = max(
            (path for path in self.origins if re.match(rf"{re.escape(path)}(?=$|[.\[])", problem.path)),
            key=len,
            default="",
        )
        rest = problem.path[len(longest) :]
        return RequestProblem((*self.origins.get(longest, ()), *parts_of(rest)), plain(problem.message))


def plain(message: str) -> str:
    """Replace the square brackets in a message with parentheses."""
    return message.replace("[", "(").replace("]", ")")


def parts_of(path: str) -> Iterator[str | int]:
    """Yield the keys and indexes in a path such as `env[0].id`."""
    for name, index in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        yield int(index) if index else name


def _is_set(value: Any) -> bool:
    return value is not None and value != ""


def coerce(value: Any, annotation: Any) -> Any:
    """Convert the value to the types of the annotation, as the hosted service's clients do.

    Nulls and empty strings are removed from sections. Free-form objects and unknown keys are unchanged.
    """
    section = next((t for t in _types(annotation) if isinstance(t, type) and issubclass(t, BaseModel)), None)
    if isinstance(value, dict) and section is not None:
        fields: Mapping[str, Any] = section.model_fields
        return {
            key: coerce(below, fields[key].annotation) if key in fields else below
            for key, below in value.items()
            if _is_set(below)
        }
    if isinstance(value, list):
        items = next((get_args(t)[0] for t in _types(annotation) if get_origin(t) is list), Any)
        return [coerce(below, items) for below in value]
    plain_type = next((t for t in (bool, int, float) if t in _types(annotation)), None)
    return value if plain_type is None else coerced_value(value, plain_type)


def coerced_value(value: Any, wanted: type[bool] | type[int] | type[float]) -> Any:
    """Convert the value to a boolean or a finite number. A value that cannot be converted is returned unchanged."""
    try:
        coerced = TypeAdapter(wanted).validate_python(value)
    except ValidationError:
        return value
    return value if isinstance(coerced, float) and not math.isfinite(coerced) else coerced


def _types(annotation: Any) -> list[Any]:
    """Return the member types of a union, or the type itself, without metadata."""
    if annotation is Any or isinstance(annotation, type) or get_origin(annotation) in (list, dict):
        return [annotation]
    return [t for argument in get_args(annotation) for t in _types(argument) if not isinstance(argument, str)]
