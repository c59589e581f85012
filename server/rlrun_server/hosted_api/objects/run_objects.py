"""Runs in the format of the hosted API."""

from collections.abc import Mapping
from typing import Any

from rlrun.api.base.phases import Phase
from rlrun.constants import COMPONENT_LABEL, Reason
from rlrun.kube.objects import Obj, label
from rlrun.kube.run_phase import first_unmet_start_condition

from rlrun_server.hosted_api.base.wire import Json, plain, plain_values, upper_snake, whole

DEFAULTS = {"rolloutsPerExample": 8, "maxSteps": 100, "batchSize": 128}
"""Defaults of the schema, which the API server writes into every spec."""
NOT_RUNNING = (Phase.queued, Phase.pending, Phase.suspended)
SETTINGS = ("args", "taskset", "harness")
"""Free-form fields of an environment, which may take 127 KiB."""
MAX_TEXT = 2000


def run_of(run: Obj, user_id: str, seq_len: int | None) -> Json:
    """Convert an RLRun to a run of the hosted API. `seq_len` is the model's sequence length, or None if unknown."""
    metadata, spec, status = run["metadata"], run.get("spec") or {}, run.get("status") or {}
    phase, progress = phase_of(run), status.get("progress") or {}
    resolved, wandb = status.get("resolved") or {}, spec.get("wandb") or {}
    created = str(metadata["creationTimestamp"])
    return {
        "id": metadata["name"],
        "name": plain(str(spec.get("name") or "")) or None,
        "userId": user_id,
        "teamId": metadata["namespace"],
        "rftClusterId": None,
        "status": status_of(run),
        "gpuCount": resolved.get("gpus"),
        **{field: spec.get(field, default) for field, default in DEFAULTS.items()},
        "seqLen": seq_len or 0,
        "maxTokens": resolved.get("maxTokens") or (spec.get("sampling") or {}).get("maxTokens"),
        "baseModel": str(spec.get("model") or ""),
        "environments": [environment_of(entry) for entry in spec.get("env") or []],
        "runConfig": None,
        "evalConfig": section(spec, "eval"),
        "valConfig": section(spec, "val"),
        "bufferConfig": section(spec, "buffer"),
        "learningRate": spec.get("learningRate"),
        "loraAlpha": whole(spec.get("loraAlpha")),
        "oversamplingFactor": spec.get("oversamplingFactor"),
        "maxAsyncLevel": spec.get("maxAsyncLevel"),
        "maxInflightRollouts": inflight(spec),
        "wandbEntity": optional_text(wandb.get("entity")),
        "wandbProject": optional_text(wandb.get("project") or resolved.get("wandbProject")) if wandb else None,
        "wandbRunName": optional_text(wandb.get("name")),
        "runsAhead": (status.get("queue") or {}).get("runsAhead") if phase is Phase.queued else None,
        "queueReason": waiting_reason(phase, status),
        "errorMessage": error_message(phase, status),
        "failureAnalysis": failure_analysis(phase, status),
        "createdAt": created,
        "startedAt": status.get("startTime"),
        "completedAt": status.get("completionTime"),
        "updatedAt": newest([created, status.get("completionTime"), progress.get("lastStepTime"), *_changes(status)]),
    }


def listed_run_of(run: Obj, user_id: str, seq_len: int | None) -> Json:
    """Convert an RLRun to a list item, which lacks the settings of its environments.

    `seq_len` has the same meaning as in `run_of`.
    """
    spec = dict(run.get("spec") or {})
    spec["env"] = _without_settings(spec.get("env"))
    if isinstance(spec.get("eval"), Mapping):
        spec["eval"] = {**spec["eval"], "env": _without_settings(spec["eval"].get("env"))}
    return run_of({**run, "spec": spec}, user_id, seq_len)


def _without_settings(entries: Any) -> list[Any]:
    return [
        {key: value for key, value in entry.items() if key not in SETTINGS} if isinstance(entry, Mapping) else entry
        for entry in entries or []
    ]


def phase_of(run: Obj) -> Phase:
    """Return the phase, which is Pending for a run that the operator has not processed yet."""
    try:
        return Phase((run.get("status") or {}).get("phase") or Phase.pending)
    except ValueError:
        return Phase.pending


def is_paused(run: Obj) -> bool:
    """Return whether the run is suspended, its pods have ended, and its artifacts are final."""
    return phase_of(run) is Phase.suspended and run["status"].get("reason") != Reason.FINISHING


def status_of(run: Obj) -> str:
    """Return the status in the hosted API: PAUSED for a suspended run, PAUSING while its pods terminate."""
    phase, spec = phase_of(run), run.get("spec") or {}
    if is_paused(run):
        return "PAUSED"
    is_pausing = phase is Phase.suspended or (spec.get("suspend") and not phase.finished)
    return "PAUSING" if is_pausing else phase.value.upper()


def environment_of(entry: Any) -> Json:
    """Convert an entry of `env` to the environment object that clients expect. Clients show its `slug`."""
    entry = entry if isinstance(entry, Mapping) else {}
    shown = ("id", "name", "version", "args", "taskset", "harness", "weight", "numExamples", "rolloutsPerExample")
    environment = {key: plain_values(entry[key]) for key in shown if entry.get(key) not in (None, {})}
    return {"slug": environment.get("name") or environment.get("id") or "", **environment}


def section(spec: Mapping[str, Any], key: str) -> Json | None:
    """Return a section of the spec, with square brackets in its strings and keys replaced by parentheses, or None if
    the section is not set.
    """
    values = spec.get(key)
    return plain_values(values) if isinstance(values, Mapping) else None


def inflight(spec: Mapping[str, Any]) -> int | None:
    """Return the run's maximum number of rollouts in flight, or None if its settings do not specify it."""
    factor, batch = spec.get("oversamplingFactor"), spec.get("batchSize")
    return round(factor * batch) if isinstance(factor, int | float) and isinstance(batch, int) else None


def waiting_reason(phase: Phase, status: Mapping[str, Any]) -> str | None:
    """Return why a run is not training, or None if it has started or the reason is unknown."""
    if phase is Phase.suspended:
        return "The run is suspended. Continue it with: rlrun resume"
    if phase not in NOT_RUNNING:
        return None
    if status.get("message"):
        return optional_text(status["message"])
    unmet = first_unmet_start_condition(status.get("conditions") or ())
    return optional_text(unmet.get("message") or unmet.get("reason")) if unmet else None


def error_message(phase: Phase, status: Mapping[str, Any]) -> str | None:
    """Return why a run failed, or None if it has not failed."""
    return optional_text(status.get("message") or status.get("reason")) if phase is Phase.failed else None


def failure_analysis(phase: Phase, status: Mapping[str, Any]) -> Json | None:
    """Return a failed run's reason and the messages of its unmet conditions, or None if it has not failed."""
    if phase is not Phase.failed or not status.get("reason"):
        return None
    conditions = [c for c in status.get("conditions") or [] if isinstance(c, Mapping)]
    evidence = [
        f"{c.get('type')}: {c['message']}" for c in conditions if c.get("status") == "False" and c.get("message")
    ]
    return {"rootCause": plain(str(status["reason"])), "evidence": [plain(text[:MAX_TEXT]) for text in evidence[:10]]}


def optional_text(value: Any) -> str | None:
    """Return the value as text of limited length, or None if the value is empty."""
    return plain(str(value)[:MAX_TEXT]) if value else None


def newest(times: list[Any]) -> str:
    """Return the latest of the times, which must be in UTC because they are compared as text."""
    return max(str(time) for time in times if time)


def _changes(status: Mapping[str, Any]) -> list[Any]:
    return [c.get("lastTransitionTime") for c in status.get("conditions") or [] if isinstance(c, Mapping)]


def component_status(run: Obj, pod: Obj) -> Json:
    """Return the entry of an environment pod in the list of components."""
    metadata, spec = pod["metadata"], run.get("spec") or {}
    component = label(pod, COMPONENT_LABEL)
    kind, _, number = component.partition("-")
    entries = (spec.get("eval") or {}).get("env") or [] if kind == "eval" else spec.get("env") or []
    entry = entries[int(number)] if number.isdigit() and int(number) < len(entries) else {}
    return {
        "pod_name": metadata["name"],
        "status": pod_status(pod),
        "env_name": plain(str(entry.get("name") or str(entry.get("id") or component).rpartition("/")[2])),
        "env_index": 0,
    }


def pod_status(pod: Obj) -> str:
    """Return the state of a pod as one word."""
    if pod["metadata"].get("deletionTimestamp"):
        return "STOPPING"
    status = pod.get("status") or {}
    is_ready = any(c.get("type") == "Ready" and c.get("status") == "True" for c in status.get("conditions") or [])
    return (
        upper_snake(str(status.get("phase") or "Pending"))
        if is_ready or status.get("phase") != "Running"
        else "STARTING"
    )


def number_servers(servers: list[Json]) -> list[Json]:
    """Sort the servers, and add to each its index among the servers of its environment."""
    counts: dict[str, int] = {}
    numbered = []
    for server in sorted(servers, key=lambda each: (str(each["env_name"]), str(each["pod_name"]))):
        index = counts.get(str(server["env_name"]), 0)
        counts[str(server["env_name"])] = index + 1
        numbered.append({**server, "env_index": index})
    return numbered
