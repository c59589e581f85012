"""Observer of pools: reads adapters, models, objects, pods, and the reports of sidecars.

Pods, models and objects except Secrets come from informers. Secrets and adapters are read from the API server in each
reconcile, adapters because they decide whether a pool is deleted.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Protocol

from rlrun.constants import SERVING_LABEL
from rlrun.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    NETWORK_POLICY,
    POD,
    RLADAPTER,
    RLMODEL,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
)
from rlrun.kube.objects import Obj, is_client_run, label
from rlrun.kube.pods import Pod
from rlrun.kube.references import find_model
from rlrun.protocol.access import USER_API_KEY
from rlrun.protocol.problem import Problem
from rlrun.protocol.serving import ServingReport
from rlrun.protocol.trainer import SessionSpec
from rlrun.service.errors import RequestError

from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.cluster.weights_cache import read_weights
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.planning.resolution import client_session, signed_config
from rlrun_operator.resources.access.observed_secret import ObservedSecret, decode_secret
from rlrun_operator.resources.access.run_tokens import pool_token, shared_pool_token
from rlrun_operator.resources.base.naming import config_name
from rlrun_operator.resources.models.model_secrets import secret_names
from rlrun_operator.resources.platform import credentials_problem
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.resources.weights_cache import cache_identity
from rlrun_operator.serving.deployment_state import is_wanted, running_pods
from rlrun_operator.serving.observation import PoolObservation
from rlrun_operator.serving.planner import variables_of
from rlrun_operator.serving.sidecar_client import PoolSidecarClient, address

log = logging.getLogger(__name__)

API_KEY_BYTES = 32
KINDS = (DEPLOYMENT, SERVICE, NETWORK_POLICY, CONFIG_MAP, SERVICE_ACCOUNT)


class Credentials(Protocol):
    """Source of the platform's S3 credentials."""

    @property
    def storage_key(self) -> bytes:
        """Key that signs the grants for rlrun-server."""

    async def source_secret(self) -> dict[str, str] | None:
        """Return the data of the platform's S3 Secret, or None if it does not exist."""


class PoolObserver:
    """Reads the state of pools."""

    def __init__(
        self,
        objects: RunObjects,
        credentials: Credentials,
        sidecars: PoolSidecarClient,
        settings: OperatorSettings,
        token_key: bytes,
    ) -> None:
        self._objects = objects
        self._cluster = objects.cluster
        self._credentials = credentials
        self._sidecars = sidecars
        self._settings = settings
        self._token_key = token_key

    async def observe(self, key: PoolIdentity) -> PoolObservation:
        """Return the observation of the serving pool. Raises ApiError."""
        adapters, (pods, children) = await asyncio.gather(
            self._adapters(key), self._owned(key, (key.token_secret, key.api_key_secret))
        )
        pool = PoolObservation(key, tuple(adapters), children=children, pods=pods, reports=await self._reports(pods))
        if not any(map(is_wanted, adapters)):
            return pool
        pool = replace(
            pool,
            token=pool_token(self._token_key, key.namespace, key.name),
            api_key=_api_key(key, children) or secrets.token_hex(API_KEY_BYTES),
        )
        return await self._with_references(pool)

    async def observe_shared(self, key: PoolIdentity, *, is_fresh: bool = False) -> PoolObservation:
        """Return the observation of the shared pool. If `is_fresh`, runs and their configurations are read from the
        API server instead of a cache. Raises ApiError.
        """
        runs, (pods, children) = await asyncio.gather(
            self._objects.runs_of_pool(key.namespace, key.name, is_fresh=is_fresh),
            self._owned(key, (key.token_secret,)),
        )
        token = shared_pool_token(self._token_key, key.namespace, key.name)
        pool = PoolObservation(key, children=children, pods=pods, runs=tuple(runs), token=token)
        warm_starts, clients = await self._configurations(runs, is_fresh=is_fresh)
        pool = replace(pool, token_key=self._token_key, warm_starts=warm_starts, clients=clients)
        return await self._with_references(pool)

    async def _configurations(
        self, runs: Iterable[Obj], *, is_fresh: bool
    ) -> tuple[dict[str, str], dict[str, SessionSpec]]:
        """Return the URI of the checkpoint from which each run with a checkpoint starts, and the specification of the
        session of each run with `driver: Client`, by uid.
        """
        warm_starts: dict[str, str] = {}
        clients: dict[str, SessionSpec] = {}
        for run in runs:
            if not run["spec"].get("checkpointId") and not is_client_run(run):
                continue
            metadata = run["metadata"]
            name = config_name(metadata["name"])
            config_map = await self._objects.get(CONFIG_MAP, metadata["namespace"], name, is_fresh=is_fresh)
            try:
                config = signed_config(config_map, run, self._credentials.storage_key)
                session = (
                    client_session(config, run, self._settings) if config is not None and is_client_run(run) else None
                )
            except Exception:
                # Users can change the ConfigMap, which must not stop the pool's other runs.
                log.exception("cannot read the configuration of run %s/%s", metadata["namespace"], metadata["name"])
                continue
            if config is not None and config.warm_start_from is not None:
                warm_starts[metadata["uid"]] = config.warm_start_from
            if session is not None:
                clients[metadata["uid"]] = session
        return warm_starts, clients

    async def _owned(self, key: PoolIdentity, names: Sequence[str]) -> tuple[tuple[Pod, ...], tuple[Obj, ...]]:
        """Return the pool's pods, and its other objects, including the Secrets with these names."""
        selector = key.selector()
        (pods, *lists), found = await asyncio.gather(
            asyncio.gather(*(self._objects.list(kind, key.namespace, selector) for kind in (POD, *KINDS))),
            asyncio.gather(*(self._cluster.get(SECRET, key.namespace, name) for name in names)),
        )
        own = [s for s in found if s is not None and label(s, SERVING_LABEL) == key.name]
        return tuple(map(Pod, pods)), (*(obj for objects in lists for obj in objects), *own)

    async def _with_references(self, pool: PoolObservation) -> PoolObservation:
        """Add the facts from which the pool's objects are built."""
        key = pool.key
        models, source = await asyncio.gather(self._objects.list(RLMODEL), self._credentials.source_secret())
        problem = credentials_problem(self._settings, source)
        model = find_model(key.model, models)
        named = set[str]() if isinstance(model, Problem) else secret_names(model, variables_of(key, model))
        cache = None if isinstance(model, Problem) else cache_identity(key.namespace, model)
        of_model = await asyncio.gather(*(self._cluster.get(SECRET, key.namespace, name) for name in sorted(named)))
        return replace(
            pool,
            models=tuple(models),
            s3_problem=problem,
            storage_key=self._credentials.storage_key,
            model_secrets=ObservedSecret.by_name(of_model),
            weights=await read_weights(self._cluster, cache),
        )

    async def adapters(self, key: PoolIdentity) -> PoolObservation:
        """Return an observation that contains only the pool's adapters, for a pool in a namespace that is not a tenant.
        Raises ApiError.
        """
        return PoolObservation(key, tuple(await self._adapters(key)))

    async def deployments(self, key: PoolIdentity) -> PoolObservation:
        """Return an observation that contains only the pool's Deployments, for a pool in a namespace that is not a
        tenant. Raises ApiError.
        """
        return PoolObservation(key, children=tuple(await self._objects.list(DEPLOYMENT, key.namespace, key.selector())))

    async def _adapters(self, key: PoolIdentity) -> list[Obj]:
        # Read page by page, and drop the adapters of other models.
        pages = self._cluster.all_pages(RLADAPTER, key.namespace)
        return [a async for page, _ in pages for a in page if a["spec"].get("model") == key.model]

    async def _reports(self, pods: Iterable[Pod]) -> dict[str, ServingReport]:
        reachable = [p.obj for p in running_pods(pods) if address(p.obj) and p.phase == "Running"]
        reports = await asyncio.gather(*map(self._report, reachable))
        return {p["metadata"]["name"]: r for p, r in zip(reachable, reports, strict=True) if r is not None}

    async def _report(self, pod: Obj) -> ServingReport | None:
        try:
            return await self._sidecars.fetch_report(pod)
        except RequestError as error:
            log.debug("pod %s: %s", pod["metadata"]["name"], error)
            return None


def _api_key(key: PoolIdentity, children: Sequence[Obj]) -> str:
    """Return the key of the pool's users, or an empty string if their Secret has no key that is valid in a header."""
    secrets_of_users = [c for c in children if c["metadata"]["name"] == key.api_key_secret]
    found = decode_secret(secrets_of_users[0]).get(USER_API_KEY, "") if secrets_of_users else ""
    return found if found.isascii() else ""
