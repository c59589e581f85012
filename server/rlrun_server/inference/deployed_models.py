"""Models that serving pools serve, and their names in requests."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rlrun.api.adapter import DeploymentState
from rlrun.protocol.serving import served_name

from rlrun_server.rest.objects.kept_objects import KeptObjects
from rlrun_server.rest.objects.summaries import ArtifactSummary


@dataclass(frozen=True, order=True)
class DeployedModel:
    """Adapter that a pool should serve, or the pool's base model."""

    namespace: str
    base: str
    """Id of the base model."""
    adapter: str = ""
    """Name of the RLAdapter, or empty for the base model."""
    created: int = 0
    """Unix time at which the adapter, or the oldest deployed adapter of the base model, was created."""
    is_ready: bool = False
    """True if the operator has found the adapter, or an adapter of the base model, in the pool's engines. If False,
    completions are rejected. If True, an engine may still lack the adapter.
    """

    @property
    def served_name(self) -> str:
        """Name of the model in the engine. Requests can use it, too, unless it is ambiguous for the user."""
        return served_name(self.base, self.adapter) if self.adapter else self.base

    @property
    def own_name(self) -> str:
        """Name of the model that is unique among namespaces."""
        return f"{self.namespace}/{self.adapter or self.base}"

    @property
    def names(self) -> tuple[str, ...]:
        """All names by which requests can select the model."""
        return tuple(dict.fromkeys((self.served_name, self.own_name, f"{self.namespace}/{self.served_name}")))


class DeployedModels:
    """Deployed models of all namespaces by name, as seen by the watch of RLAdapters."""

    def __init__(self, adapters: KeptObjects[ArtifactSummary]) -> None:
        self._adapters = adapters
        self._changes = -1
        self._models: Sequence[DeployedModel] = ()
        self._by_name: Mapping[str, Sequence[DeployedModel]] = {}

    def all(self) -> Sequence[DeployedModel]:
        """Return all models, sorted by namespace, base model and adapter."""
        self._update()
        return self._models

    def find_named(self, name: str) -> Sequence[DeployedModel]:
        """Return the models to which this name may refer."""
        self._update()
        return self._by_name.get(name, ())

    def find_undeployed(self, name: str) -> Iterator[DeployedModel]:
        """Yield adapters of this name that are not deployed."""
        for kept in self._adapters.all():
            if not kept.summary.deployed and name.endswith(kept.name):
                model = DeployedModel(kept.namespace, kept.summary.model, kept.name)
                if name in model.names:
                    yield model

    def message(self, model: DeployedModel) -> str:
        """Return the operator's message about the deployment of an adapter, or an empty string if there is none or only
        the adapter's summary is in memory.
        """
        kept = self._adapters.find(model.namespace, model.adapter)
        status = (kept.read().get("status") or {}) if kept is not None and kept.data is not None else {}
        return str(status.get("deploymentMessage") or "")

    def _update(self) -> None:
        if self._adapters.changes != self._changes:
            self._changes = self._adapters.changes
            self._models = sorted(_models(kept.summary for kept in self._adapters.all() if kept.summary.deployed))
            by_name: dict[str, list[DeployedModel]] = defaultdict(list)
            for model in self._models:
                for name in model.names:
                    by_name[name].append(model)
            self._by_name = by_name


def _models(adapters: Iterator[ArtifactSummary]) -> Iterator[DeployedModel]:
    bases: dict[tuple[str, str], DeployedModel] = {}
    for found in adapters:
        is_ready = found.deployment_state == DeploymentState.deployed
        model = DeployedModel(
            found.namespace, found.model, found.name, int(found.created_at.timestamp()), is_ready=is_ready
        )
        yield model
        known = bases.get((model.namespace, model.base))
        is_ready = is_ready or (known is not None and known.is_ready)
        created = min(model.created, known.created) if known is not None else model.created
        base = DeployedModel(model.namespace, model.base, "", created, is_ready=is_ready)
        bases[model.namespace, model.base] = base
    yield from bases.values()
