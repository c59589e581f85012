"""Selects the pods and containers of a run whose logs are read."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rlrun.api.base.pod_shape import OWN_CONTAINERS
from rlrun.kube.objects import Obj
from rlrun.kube.pods import role_of

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"


@dataclass(frozen=True)
class ContainerStart:
    """One start of one container."""

    pod: str
    container: str
    restarts: int


class UnknownEnvironment(ValueError):
    """Raised if the run has no such environment."""

    def __init__(self, wanted: str, existing: Sequence[str]) -> None:
        super().__init__(f"the run has no environment {wanted}")
        self.existing = existing
        """Names of the environments of the run."""


def main_container(pod: Obj) -> str:
    """Return the pod's default container if it has one, otherwise its first. Injected containers are ignored, because a
    service mesh may put its proxy first.
    """
    chosen = (pod["metadata"].get("annotations") or {}).get(DEFAULT_CONTAINER)
    containers = [c["name"] for c in pod["spec"]["containers"]]
    own = OWN_CONTAINERS.get(role_of(pod), frozenset())
    containers = [name for name in containers if name in own] or containers
    return str(chosen if chosen in containers else containers[0])


def source(pod: Obj) -> ContainerStart:
    """Return the latest start of the pod's main container."""
    name = main_container(pod)
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    restarts = next((int(s.get("restartCount") or 0) for s in statuses if s["name"] == name), 0)
    return ContainerStart(pod["metadata"]["name"], name, restarts)


def oldest_first(pods: Iterable[Obj]) -> list[Obj]:
    """Return the pods in the order of their creation."""
    return sorted(pods, key=lambda p: (str(p["metadata"].get("creationTimestamp") or ""), p["metadata"]["name"]))


def components_of(run: Obj, wanted: str) -> list[str]:
    """Return the components of the environments that `wanted` selects, such as `env-0`. Raises UnknownEnvironment.

    `wanted` is a name, an id or the last part of an id. NAME/1 selects the second environment with this name, counting
    `env` first and then `eval.env`.
    """
    spec = run["spec"]
    name, slash, index = wanted.rpartition("/")
    if not slash or not (index.isdecimal() and index.isascii()):
        name, index = wanted, ""
    environments = [
        (f"{kind}-{number}", entry)
        for kind, entries in (("env", spec.get("env")), ("eval", (spec.get("eval") or {}).get("env")))
        for number, entry in enumerate(entries or [])
    ]
    components = [component for component, entry in environments if name in _names(entry)]
    # Python refuses to parse numbers with more than 4300 digits.
    chosen = components[int(index) : int(index) + 1] if index and len(index) < 10 else [] if index else components
    if not chosen:
        raise UnknownEnvironment(
            wanted, sorted({str(entry.get("name") or entry.get("id")) for _, entry in environments})
        )
    return chosen


def _names(entry: Obj) -> set[str]:
    identifier = str(entry.get("id") or "")
    return {str(entry.get("name") or identifier), identifier, identifier.rpartition("/")[2]}
