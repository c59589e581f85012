"""Reads the requests with which the hosted service's client (prime 0.18.0) starts and resumes dedicated runs:
`/training/runs`.

The field `config` contains a parsed TOML file, in prime-rl's schema or in this one, and is read like the file itself.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from rlrun.api.base.field_errors import MAX_SUGGESTIONS, FieldProblem, unknown_field
from rlrun.api.base.received import MAX_FAULTS
from rlrun.api.toml.client_requests import VARIABLE, ClientRun, Location, RequestProblem, parts_of, plain
from rlrun.api.toml.dialect_keys import refusal
from rlrun.api.toml.loader import TomlError, from_table

VARIABLES = {"wandbApiKey": "WANDB_API_KEY", "hfToken": "HF_TOKEN"}
"""Environment variable that each field of a request sets, by field name."""
OF_ALL = (*VARIABLES, "secrets", "gpuType", "imageTag")
"""Fields allowed in both requests. `gpuType` and `imageTag` have no effect, because the RLModel configures the pods."""
OF_NEW = (*OF_ALL, "config", "mode", "name", "teamId", "volume", "sourceRef", "resumeFrom", "normalizedConfig")
REFUSED = {
    "volume": "has no equivalent: files of a run are stored in the platform's S3",
    "sourceRef": refusal("source_ref") or "",
}


@dataclass(frozen=True)
class DedicatedRun:
    """Run that a request describes."""

    run: ClientRun
    resume_from: str | None = None
    """Id of the paused run whose newest checkpoint the run starts from."""


@dataclass(frozen=True)
class _Body:
    """Object in a request, and the problems found in it."""

    fields: dict[str, Any]
    found: list[RequestProblem] = field(default_factory=list)

    def refuse(self, message: str, *location: str | int) -> None:
        self.found.append(RequestProblem(location, plain(message)))

    def text(self, name: str) -> str | None:
        """Return the string in a field, or None if it is missing, null or empty."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, str):
            self.refuse("must be a string", name)
        return value if isinstance(value, str) and value else None

    def secrets(self) -> dict[str, str]:
        """Return the environment variables by name."""
        values = {variable: value for name, variable in VARIABLES.items() if (value := self.text(name))}
        given = self.fields.get("secrets") or {}
        if not isinstance(given, dict):
            self.refuse("must be an object", "secrets")
            return values
        for name, value in given.items():
            if not VARIABLE.fullmatch(name):
                self.refuse("must have names of letters, digits and _, not starting with a digit", "secrets")
            elif not isinstance(value, str):
                self.refuse("must be a string", "secrets", name)
            else:
                values[name] = value
        return values


def read_new_run(body: Any, owner: str) -> DedicatedRun | list[RequestProblem]:
    """Return the run of a `POST /training/runs`, or all problems of the request.

    `owner` completes ids of environments without an owner.
    """
    read = _open(body, OF_NEW)
    if isinstance(read, list):
        return read
    for name, why in REFUSED.items():
        if read.fields.get(name):
            read.refuse(why, name)
    if read.fields.get("mode") not in (None, "rl"):
        read.refuse(refusal("data") or "", "mode")
    secrets, title, team, paused = read.secrets(), read.text("name"), read.text("teamId"), read.text("resumeFrom")
    config = copy.deepcopy(read.fields.get("config"))
    if not isinstance(config, dict):
        read.refuse("must be an object", "config")
        return read.found
    try:
        document = from_table(config if "name" in config or not title else {**config, "name": title}, owner)
    except TomlError as error:
        return read.found + [_in_config(problem.path, problem.message) for problem in error.problems]
    if document.env_files:
        read.refuse("has no equivalent: the server cannot read your files; link a secret to the environment", "config")
    if read.found:
        return read.found

    def locate(problem: FieldProblem) -> RequestProblem:
        return _in_config(document.origin(problem.path), problem.message)

    return DedicatedRun(ClientRun(document.spec, secrets, team, locate), paused)


def read_resume(body: Any) -> dict[str, str] | list[RequestProblem]:
    """Return the environment variables in a `POST /training/runs/{id}/resume`, or all problems of the request."""
    read = _open(body, OF_ALL)
    if isinstance(read, list):
        return read
    secrets = read.secrets()
    return read.found or secrets


def _open(body: Any, known: Iterable[str]) -> _Body | list[RequestProblem]:
    if not isinstance(body, dict):
        return [RequestProblem((), "must be a JSON object")]
    read = _Body(body)
    for number, name in enumerate(sorted(body.keys() - set(known))[:MAX_FAULTS]):
        read.refuse(unknown_field(name, known, suggests=number < MAX_SUGGESTIONS), name)
    return read


def _in_config(path: str, message: str) -> RequestProblem:
    location: Location = ("config", *parts_of(path))
    return RequestProblem(location, plain(message))
