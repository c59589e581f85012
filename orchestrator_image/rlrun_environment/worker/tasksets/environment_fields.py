"""Converts a run's environment fields to the configuration of a verifiers.v1 environment.

    taskset   the environment's `taskset`, with the package as its id
    harness   for each agent: its `harness`, and the agent's own fields (runtime, max_turns, sampling, ...)
    args      everything else: fields of the environment, its agents by name, and `select`

Agents run as processes in the environment's pod: the default runtime is `subprocess`, and all other runtimes are
rejected.
"""

from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any

import verifiers.v1 as vf
from pydantic import BaseModel, ValidationError
from rlrun.constants import Reason
from rlrun.protocol.environment import EnvironmentConfig
from verifiers.v1.utils.compile import resolve_runtime_config, validate_pairing
from verifiers.v1.utils.generic import deep_merge

from rlrun_environment.worker.tasksets.reserved_names import reserved_name_conflict
from rlrun_environment.worker.tasksets.task_rows import TaskRows
from rlrun_environment.worker.user_code.load_error import LoadError
from rlrun_environment.worker.user_code.loaded import EnvironmentForm, Loaded

RUNTIME = "subprocess"
"""The only supported runtime for agents and tool servers."""
MAX_SHOWN = 3
"""Maximum number of invalid fields in one message."""
SELECT = "select"
"""Key in `args` that selects tasks, like `--select` of verifiers' command line."""
Path = tuple[str, ...]


def load_taskset(module: ModuleType, config: EnvironmentConfig) -> Loaded:
    """Load the environment of a package that exports a taskset. Raises LoadError, and any exception of the package."""
    args = dict(config.args)
    selection = args.pop(SELECT, None)
    fields = _Fields(module, config, args)
    settings = fields.validate()
    _refuse_runtimes(settings, fields)
    _refuse_models(settings)
    environment = vf.load_environment(settings)
    rows = TaskRows(_select(environment.taskset, selection))
    if len(rows):
        if conflict := reserved_name_conflict(rows.task(0)):
            raise invalid_fields(conflict)
        _refuse_containers(environment, settings, rows.task(0))
    return Loaded(environment, rows, None, EnvironmentForm.taskset)


class _Fields:
    """Raw configuration of the environment, and the run's fields from which its parts come."""

    def __init__(self, module: ModuleType, config: EnvironmentConfig, args: dict[str, Any]) -> None:
        taskset, harness = dict(config.taskset or {}), dict(config.harness or {})
        if _exports(module, vf.Taskset):
            taskset.setdefault("id", config.package)
        else:
            args.setdefault("id", config.package)
        if not taskset.get("id"):
            message = (
                f"{config.package} is an environment without a taskset of its own. Set taskset.id to the package of "
                "a taskset"
            )
            raise invalid_fields(message)
        self.config_type = vf.env_config_type(str(taskset["id"]), str(args.get("id") or ""))
        self.agents = {
            name: field.default
            for name, field in self.config_type.model_fields.items()
            if isinstance(field.default, vf.AgentConfig)
        }
        self._shared: dict[str, set[str]] = {}
        """Fields of each agent that come from `harness`."""
        self.raw: dict[str, Any] = {**args, "taskset": taskset}
        for name, default in self.agents.items():
            self.raw[name] = self._agent(name, default, harness, args.get(name, {}), taskset["id"])

    def validate(self) -> Any:
        """Validate and return the configuration. Raises LoadError, which names the invalid fields."""
        try:
            return self.config_type.model_validate(self.raw)
        except ValidationError as error:
            # An error in `harness` may be reported once per agent.
            errors = error.errors(include_url=False)
            found = list(dict.fromkeys(self.name(tuple(map(str, e["loc"]))) + _invalidity(e) for e in errors))
            more = f" and {len(found) - MAX_SHOWN} more" if len(found) > MAX_SHOWN else ""
            raise invalid_fields("; ".join(found[:MAX_SHOWN]) + more) from error

    def name(self, path: Path) -> str:
        """Return the run's field from which a part of the configuration comes."""
        if path[:1] == ("taskset",):
            return ".".join(path)
        agent, rest = path[:1], path[1:]
        shared = self._shared.get(agent[0], set()) if agent else set()
        if rest[:1] == ("harness",) and rest[1:2] and rest[1] in shared:
            return ".".join(rest)
        if rest and rest[0] in shared:
            return ".".join(("harness", *rest))
        return ".".join(("args", *path))

    def _agent(self, name: str, default: Any, harness: dict[str, Any], own: Any, taskset: str) -> Any:
        if not isinstance(own, Mapping):
            return own
        pinned = own.get("harness")
        identifier = pinned.get("id") if isinstance(pinned, Mapping) else None
        identifier = identifier or harness.get("id") or (default.harness.id if default.harness else None)
        identifier = str(identifier or vf.default_harness_id(taskset))
        known = vf.harness_config_type(identifier).model_fields
        of_agent = {key for key in vf.AgentConfig.model_fields if key != "harness" and key not in known}
        self._shared[name] = set(harness)
        section: dict[str, Any] = {key: value for key, value in harness.items() if key in of_agent}
        program = {key: value for key, value in harness.items() if key not in of_agent}
        if program or pinned:
            section["harness"] = {**program, "id": identifier}
        section = deep_merge(section, dict(own))
        if "runtime" not in section and "runtime" not in default.model_fields_set:
            section["runtime"] = {"type": RUNTIME}
        return section


def invalid_fields(message: str) -> LoadError:
    """Return the error for fields that do not match the environment."""
    return LoadError(Reason.ENVIRONMENT_LOAD_FAILED, message)


def _invalidity(error: Any) -> str:
    """Return the problem of a field as text that follows the field's name."""
    if error["type"] == "extra_forbidden":
        return ": unknown field"
    if error["type"] == "union_tag_invalid" and error["loc"][-1] == "runtime":
        return _refusal(error["ctx"]["tag"])
    return f": {error['msg']}"


def _refusal(runtime: str) -> str:
    return (
        f".type: the runtime {runtime!r} needs containers or machines, which environments do not have here. "
        f"Use the runtime {RUNTIME!r}, which runs agents and tool servers as processes in the environment's pod"
    )


def _exports(module: ModuleType, base: type) -> bool:
    found = (getattr(module, name, None) for name in getattr(module, "__all__", ()))
    return any(isinstance(one, type) and issubclass(one, base) for one in found)


def _select(taskset: Any, selection: Any) -> Any:
    if selection is None:
        return taskset
    config = getattr(vf, "SelectConfig", None)
    if config is None:
        raise invalid_fields(f"args.{SELECT}: this version of verifiers cannot select tasks. Use 0.4 or later")
    try:
        return taskset.select(config.model_validate(selection))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        path = ".".join(map(str, (SELECT, *first["loc"])))
        raise invalid_fields(f"args.{path}: {first['msg']}") from error


def _refuse_runtimes(settings: BaseModel, fields: _Fields) -> None:
    for path, runtime in _runtimes(settings, ()):
        if runtime.type != RUNTIME:
            raise invalid_fields(f"{fields.name(path)}{_refusal(runtime.type)}")


def _runtimes(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Yield the runtime configurations within a configuration, with their paths."""
    if isinstance(value, list | tuple):
        for number, entry in enumerate(value):
            yield from _runtimes(entry, (*path, str(number)))
    elif isinstance(value, BaseModel) and type(value).__module__.startswith("verifiers.v1.runtimes"):
        yield path, value
    elif isinstance(value, BaseModel):
        for name, entry in value:
            yield from _runtimes(entry, (*path, name))


def _refuse_models(settings: BaseModel) -> None:
    for name, agent in settings:
        if isinstance(agent, vf.AgentConfig) and agent.model is not None and agent.client is None:
            raise invalid_fields(
                f"args.{name}.model: the run serves only its own policy, not {agent.model!r}. Remove it, or set "
                f"args.{name}.client to the endpoint that serves this model"
            )


def _refuse_containers(environment: Any, settings: Any, task: Any) -> None:
    """Reject harnesses and tasks that need a container. `task` is the first task."""
    subprocess = vf.SubprocessConfig()
    instead = f"Only the runtime {RUNTIME!r} is available, with the harnesses 'null' and 'bash' or the package's own"
    tools = [*task.toolsets(task.config), *environment.taskset.toolsets(environment.taskset.config)]
    try:
        for config in settings.agent_harnesses().values():
            validate_pairing(vf.load_harness(config), type(task), subprocess, tools=tools)
        resolve_runtime_config(subprocess, task)
    except ValueError as error:
        if task.data.image is not None:
            instead += ". A task's field `image` is its container image; use another name for pictures"
        raise invalid_fields(f"{error}. {instead}") from error
