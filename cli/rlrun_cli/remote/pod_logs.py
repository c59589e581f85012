"""Selection of the pods and lines that `rlrun logs` prints."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from rlrun.constants import COMPONENT_LABEL, ROLE_LABEL, RUN_LABEL, Role
from rlrun.kube.kinds import POD
from rlrun.kube.objects import Obj

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.terminal.errors import INVALID, CliError

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


@dataclass(frozen=True)
class LogSource:
    """One start of one container."""

    pod: str
    container: str
    restarts: int


@dataclass(frozen=True)
class Selection:
    """Pods and lines that are printed."""

    role: Role
    components: Sequence[str] = ()
    """Components such as `env-0`. Empty: all of the role."""
    tail: int | None = None
    since: int | None = None
    """Seconds."""
    previous: bool = False


def main_container(pod: Obj) -> str:
    """Return the default container of a pod."""
    chosen = (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER)
    containers = [c["name"] for c in pod["spec"]["containers"]]
    return str(chosen if chosen in containers else containers[0])


def source(pod: Obj) -> LogSource:
    """Return the newest start of the pod's main container."""
    name = main_container(pod)
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    restarts = next((int(s.get("restartCount") or 0) for s in statuses if s["name"] == name), 0)
    return LogSource(pod["metadata"]["name"], name, restarts)


def sources(pods: list[Obj]) -> list[LogSource]:
    """Return one source per pod, oldest pod first."""
    ordered = sorted(pods, key=lambda p: (str(p["metadata"].get("creationTimestamp") or ""), p["metadata"]["name"]))
    return [source(p) for p in ordered]


def pods_of(api: RemoteCluster, run: str, chosen: Selection) -> list[Obj]:
    """Return the selected pods."""
    pods = api.list(POD, {RUN_LABEL: run, ROLE_LABEL: chosen.role.value})
    if not chosen.components:
        return pods
    return [p for p in pods if (p["metadata"].get("labels") or {}).get(COMPONENT_LABEL) in chosen.components]


def components_of(run: Obj, wanted: str) -> list[str]:
    """Return the components of the environments that --env selects, such as `env-0`. Raises CliError."""
    spec = run["spec"]
    name, slash, index = wanted.rpartition("/")
    if not slash or not index.isdecimal():
        name, index = wanted, ""
    environments = [
        (f"{kind}-{number}", entry)
        for kind, entries in (("env", spec.get("env")), ("eval", (spec.get("eval") or {}).get("env")))
        for number, entry in enumerate(entries or [])
    ]
    found = [component for component, entry in environments if name in _names(entry)]
    chosen = found[int(index) : int(index) + 1] if index else found
    if not chosen:
        names = sorted({str(entry.get("name") or entry.get("id")) for _, entry in environments})
        raise CliError(
            f"--env: {run['metadata']['name']} has no environment {wanted}",
            f"select one of its environments: {', '.join(names)}",
            code=INVALID,
        )
    return chosen


def _names(entry: Obj) -> set[str]:
    identifier = str(entry.get("id") or "")
    return {str(entry.get("name") or identifier), identifier, identifier.rpartition("/")[2]}


def parse_seconds(text: str | None) -> int | None:
    """Return the seconds of `10m`, as kubectl writes it, or `1h30m`. Raises CliError."""
    if text is None:
        return None
    parts = re.findall(r"(\d+)([smhd])", text)
    seconds = sum(int(number) * UNITS[unit] for number, unit in parts)
    if "".join(number + unit for number, unit in parts) != text or not seconds:
        raise CliError(f"--since: {text!r} is not a time", "write it as 30s, 10m, 2h or 1h30m", code=INVALID)
    return seconds
