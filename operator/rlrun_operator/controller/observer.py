"""Observer of runs: reads the planner's input from the API server, S3 and the orchestrator.

The run's objects come from informers. The list of the run's files comes from the last S3 listing as long as no file
can have been written since. Before a decision, the run, its pods, Workloads, artifacts and files, and the status of its
orchestrator are read again (`is_fresh`). The status of a terminating orchestrator is not read again, because the
orchestrator may take seconds to respond while other processes wait for its replacement. Everything else is read in each
reconcile, or from a cache with a time limit. Secrets are read by name, never listed. Requests that the run's phase does
not need are skipped.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import Any

from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import RLRunStatus
from rlrun.constants import ATTEMPT_LABEL, FINALIZER, RUN_LABEL, RUN_UID_LABEL, SERVING_LABEL, Reason, Role
from rlrun.kube.errors import ApiError
from rlrun.kube.informer import identity_of
from rlrun.kube.kinds import (
    DEPLOYMENT,
    JOB,
    POD,
    RLADAPTER,
    RLCHECKPOINT,
    RLMODEL,
    RLRUN,
    SECRET,
)
from rlrun.kube.objects import Obj, is_artifact_ready, is_client_run, label
from rlrun.kube.pods import Pod
from rlrun.kube.references import find_model, split_checkpoint_id
from rlrun.protocol.orchestrator import RunStatus
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import ResolvedRun
from rlrun.service.errors import RequestError
from rlrun.storage.store import StoreError

from rlrun_operator.cluster.informers import CHILDREN
from rlrun_operator.cluster.runs import RunObjects
from rlrun_operator.cluster.tenants import TenancyProblem, no_problem
from rlrun_operator.cluster.weights_cache import read_weights
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.controller.egress_observer import EgressObserver
from rlrun_operator.controller.kueue_observer import KueueObserver
from rlrun_operator.controller.node_states import NodeStates
from rlrun_operator.controller.orchestrator_client import OrchestratorClient
from rlrun_operator.controller.pod_events import PodEvents
from rlrun_operator.controller.priority_classes import PriorityClasses
from rlrun_operator.planning.artifact_catalog import ArtifactCatalog, digest_of, keep_reference, may_start_from
from rlrun_operator.planning.artifacts import UploadSchedule
from rlrun_operator.planning.ending import trainer_may_write
from rlrun_operator.planning.observation import ObservedPool, RunKey, RunObservation, TrainerReport
from rlrun_operator.planning.resolution import attempt_config, shares_engines
from rlrun_operator.planning.spec import parse_spec, readable_part
from rlrun_operator.planning.status import long_ago, read_status
from rlrun_operator.resources.access.observed_secret import ObservedSecret, decode_secret
from rlrun_operator.resources.access.run_tokens import run_token
from rlrun_operator.resources.base.naming import token_secret_name
from rlrun_operator.resources.environment import wants_egress
from rlrun_operator.resources.models.model_secrets import secret_names
from rlrun_operator.resources.models.model_variables import run_variables
from rlrun_operator.resources.platform import (
    credentials_problem,
    s3_variables,
)
from rlrun_operator.resources.serving_pool import PoolIdentity
from rlrun_operator.resources.shared_pool import deployment_names, pool_named
from rlrun_operator.resources.weights_cache import cache_identity
from rlrun_operator.storage.artifact_listings import ArtifactListing, ArtifactListings, ListingRequest
from rlrun_operator.storage.artifact_store import ArtifactStore

log = logging.getLogger(__name__)

SOURCE_SECONDS = 10.0
"""Seconds for which the platform's S3 Secret is cached."""
NEW_RUN_SECONDS = 1.0
"""Seconds for which the S3 Secret is cached for new runs, which need current credentials. One read serves all runs that
are created within this time.
"""
NO_PROBLEMS: Mapping[PoolIdentity, Problem] = MappingProxyType({})
WITH_CHECKPOINT = "spec.checkpointId!="
"""Field selector of runs that start from a checkpoint. An unset field counts as empty."""


class Observer:
    """Reads the state of runs."""

    def __init__(
        self,
        objects: RunObjects,
        artifacts: ArtifactStore,
        poller: OrchestratorClient,
        settings: OperatorSettings,
        token_key: bytes | None = None,
        storage_key: bytes = b"",
        clock: Callable[[], float] = time.monotonic,
        tenancy_problem: TenancyProblem = no_problem,
        pool_problems: Mapping[PoolIdentity, Problem] = NO_PROBLEMS,
        pool_trainers: dict[PoolIdentity, TrainerReport] | None = None,
    ) -> None:
        """The tokens of runs are derived from `token_key`; if it is None, the processes of runs require no tokens.
        `storage_key` signs the grants for rlrun-server. `pool_problems` contains the serving controller's reasons why
        shared pools cannot be created, and `pool_trainers` the newest reports of their trainers.
        """
        self._pool_trainers = {} if pool_trainers is None else pool_trainers
        self._pool_problems = pool_problems
        self._tenancy_problem = tenancy_problem
        self._objects = objects
        self._cluster = cluster = objects.cluster
        self._clock = clock
        self._listings = ArtifactListings(artifacts, settings, clock)
        self._artifacts = artifacts
        self._poller = poller
        self._settings = settings
        self._egress = EgressObserver(cluster, settings.egress, clock)
        self._priorities = PriorityClasses(cluster, settings, clock)
        self._kueue = KueueObserver(cluster, settings)
        self._pod_events = PodEvents(cluster)
        self._nodes = NodeStates(cluster, clock)
        self._token_key = token_key
        self.storage_key = storage_key
        self._source: tuple[float, dict[str, str] | None] | None = None

    async def observe(
        self, namespace: str, name: str, now: datetime | None = None, *, is_fresh: bool = False
    ) -> RunObservation | None:
        """Return the observation of the run, or None if it does not exist.

        If `now` is given, the Secret of a run that ended more than LATELY before `now` is not read. If `is_fresh`, the
        facts that decisions depend on are read again. Raises ApiError if a read fails, or if this version cannot read
        the run's status.
        """
        objects = self._objects
        run = await objects.get(RLRUN, namespace, name, is_fresh=is_fresh)
        if run is None:
            key = RunKey(namespace, name)
            self._poller.forget(key)
            self._pod_events.forget(key)
            self.forget(key)
            return None
        if (problem := self._tenancy_problem(namespace)) is not None:
            return RunObservation(run=run, tenancy_problem=problem, is_cached=not is_fresh and objects.has_informers)
        uid = run["metadata"]["uid"]
        deleted = bool(run["metadata"].get("deletionTimestamp"))
        status = RLRunStatus.parse(run.get("status")) if deleted else read_status(run)
        labels, has_artifacts = {RUN_LABEL: name}, status.start_time is not None
        *lists, pod_objects, checkpoints, adapters = await asyncio.gather(
            *(objects.list(kind, namespace, labels) for kind in CHILDREN),
            objects.list(POD, namespace, labels, is_fresh=is_fresh),
            *(
                objects.list(kind, namespace, {RUN_UID_LABEL: uid}, is_fresh=is_fresh and has_artifacts)
                for kind in (RLCHECKPOINT, RLADAPTER)
            ),
        )
        children, artifact_objects = [obj for found in lists for obj in found], [*checkpoints, *adapters]
        pods = tuple(map(Pod, pod_objects))
        # Deletions do not need the Secret, and permissions in a namespace that is being deleted may end before its
        # runs.
        if not deleted and (is_fresh or not self._lacks_secret(run, status, [*children, *pod_objects], now)):
            secret = await objects.secret(namespace, token_secret_name(name))
            children += [secret] if secret is not None and label(secret, RUN_LABEL) == name else []
        variables, s3_problem = await self._s3(status)
        kueue = await self._kueue.observe(run, status, objects, is_fresh=is_fresh)
        parts: dict[str, Any] = {"s3_problem": s3_problem, "kueue": kueue}
        listing = ArtifactListing()
        spec = parse_spec(run)
        pool_pods, is_trainer_writing, session = tuple[Pod, ...](), False, None
        model = str((run.get("spec") or {}).get("model") or "")
        pool = None if status.pool is None else pool_named(namespace, model, status.pool.name)
        if pool is not None:
            found = await objects.list(POD, namespace, {SERVING_LABEL: pool.name}, is_fresh=is_fresh)
            pool_pods = tuple(map(Pod, found))
            is_trainer_writing = self._is_trainer_writing(pool, pool_pods, uid, now)
            trainer = self._pool_trainers.get(pool)
            session = trainer.activity_of(uid, now) if trainer is not None and now is not None else None
        if not deleted:
            if not isinstance(spec, Problem):
                if wants_egress(spec) and not (status.phase and status.phase.finished):
                    parts |= await self._egress.observe(namespace)
                if pool is not None and not (status.phase and status.phase.finished):
                    config = attempt_config(children, uid, status.attempt)
                    parts |= await self._pool(pool, pool_pods, config, is_fresh=is_fresh)
                if needs_references(status, children, uid):
                    parts |= await self._references(run, spec, status, variables)
                if self._settings.queue.is_limited or self._needs_slot(spec, status, parts.get("models", ())):
                    parts["priority"] = await self._priorities.value_of(spec)
            parts |= await self._poll(run, pods, status, is_fresh=is_fresh)
            if is_client_run(run):
                parts |= {"client": session, "is_watched": True}
            parts["pod_events"] = await self._pod_events.read(
                RunKey(namespace, name),
                [*(pod for pod in pods if pod.run_uid == uid), *(parts["pool"].pods if "pool" in parts else ())],
                now,
                jobs=_current_jobs(children, status),
                is_fresh=is_fresh,
            )
            # List S3 after the pods: an orchestrator that has ended by now has written all its artifacts.
            report = parts.get("poll")
            readable = readable_part(run) if isinstance(spec, Problem) else spec
            schedule = UploadSchedule.of(readable, attempt_config(children, uid, status.attempt), self._settings)
            listing = await self._list_artifacts(
                ListingRequest(
                    run,
                    status,
                    schedule,
                    variables,
                    artifact_objects,
                    pod_objects,
                    report,
                    is_trainer_writing,
                    saves=None if session is None else session.saves,
                ),
                s3_problem,
                is_fresh=is_fresh,
            )
            parts["artifacts_problem"] = listing.problem
        valid_spec = None if isinstance(spec, Problem) else spec
        catalog = ArtifactCatalog.build(run, artifact_objects, listing.folders, valid_spec, now)
        finalizing = deleted and FINALIZER in (run["metadata"].get("finalizers") or [])
        if finalizing or (not isinstance(spec, Problem) and catalog.has_deletions):
            catalog = await self._with_references(catalog, namespace)
        return RunObservation(
            run=run,
            children=tuple(children),
            pods=pods,
            lost_nodes=await self._nodes.find_lost(pods, is_fresh=is_fresh),
            catalog=catalog,
            is_trainer_writing=is_trainer_writing,
            s3_variables=variables,
            token_key=self._token_key,
            storage_key=self.storage_key,
            is_cached=not is_fresh and (objects.has_informers or listing.is_kept or bool(parts.get("is_watched"))),
            **parts,
        )

    def _is_trainer_writing(self, key: PoolIdentity, pods: Sequence[Pod], uid: str, now: datetime | None) -> bool:
        """Return whether the trainer of the pool may write to the run's folder."""
        if now is None or not any(pod.role == Role.trainer for pod in pods):
            return False
        # A new operator waits for the first response.
        report = self._pool_trainers.setdefault(key, TrainerReport(None, now))
        return trainer_may_write(pods, report, uid, now)

    async def _pool(
        self, key: PoolIdentity, pods: tuple[Pod, ...], config: ResolvedRun | None, *, is_fresh: bool
    ) -> dict[str, Any]:
        """Return the observation's field `pool` and, if the pool lacks a Deployment, the field `models`.

        `config` is the configuration of the attempt.
        """
        labels = {SERVING_LABEL: key.name}
        deployments = await self._objects.list(DEPLOYMENT, key.namespace, labels, is_fresh=is_fresh)
        pool = ObservedPool(tuple(deployments), pods, self._pool_problems.get(key))
        wanted = 1 if config is None else len(deployment_names(key, config.model))
        if len(deployments) >= wanted:
            return {"pool": pool}
        return {"pool": pool, "models": tuple(await self._objects.list(RLMODEL))}

    def _needs_slot(self, spec: RLRunSpec, status: RLRunStatus, models: Sequence[Obj]) -> bool:
        """Return whether the run has or needs a slot of a shared pool."""
        if status.pool is not None:
            return True
        model = find_model(spec.model, models)
        if isinstance(model, Problem):
            return False
        has_tokens = self._token_key is not None
        return shares_engines(spec, model, has_tokens=has_tokens, is_evicted=status.pool_evicted)

    def forget(self, key: RunKey) -> None:
        """Drop the run's cached token Secret and S3 listing, so that its next reconcile reads them again."""
        self._objects.forget_secret(key.namespace, key.name)
        self._listings.forget(key)

    def _lacks_secret(self, run: Obj, status: RLRunStatus, objects: Sequence[Obj], now: datetime | None) -> bool:
        """Return whether the run certainly has no Secret with tokens, so that the read can be skipped.

        True for a new run that has no objects, and for a run that ended more than LATELY ago. A run that ended recently
        may still have a Secret, because the operator may have been killed while it created the run's objects.
        """
        if not self._objects.has_informers:
            return False
        if status.phase is None:
            return not objects and not run["metadata"].get("deletionTimestamp")
        return now is not None and long_ago(run, now) is not None

    async def run(self, key: RunKey) -> Obj | None:
        """Return the run, or None if it does not exist. Raises ApiError."""
        return await self._cluster.get(RLRUN, key.namespace, key.name)

    async def pods(self, namespace: str, name: str) -> list[Pod]:
        """Return the pods of all runs with that name, including deleted runs. Raises ApiError."""
        return [Pod(obj) for obj in await self._cluster.list(POD, namespace, {RUN_LABEL: name})]

    async def _with_references(self, catalog: ArtifactCatalog, namespace: str) -> ArtifactCatalog:
        # List the runs after S3, so that the result has every run that starts from a Ready checkpoint.
        try:
            return catalog.with_references(namespace, await self._runs_with_checkpoint())
        except ApiError as error:
            log.warning("Could not list the runs that use checkpoints; all checkpoints are kept: %s", error)
            return catalog

    async def _runs_with_checkpoint(self) -> list[Obj]:
        """List the runs that start from a checkpoint, and return their references. Raises ApiError."""
        return await self._cluster.list(RLRUN, fields=WITH_CHECKPOINT, keep=keep_reference)

    async def source_secret(self, kept_seconds: float = SOURCE_SECONDS) -> dict[str, str] | None:
        """Return the platform's S3 credentials, read at most `kept_seconds` ago, or None if their Secret does not
        exist.

        The result is empty if the platform uses a workload identity.
        """
        ref = self._settings.s3.credentials_secret
        if ref is None:
            return {}
        if self._source is not None and self._clock() - self._source[0] < kept_seconds:
            return self._source[1]
        secret = await self._cluster.get(SECRET, ref.namespace, ref.name)
        decoded = None if secret is None else decode_secret(secret)
        self._source = (self._clock(), decoded)
        return decoded

    async def s3_variables(self, kept_seconds: float = SOURCE_SECONDS) -> dict[str, str] | Problem:
        """Return the AWS_* variables of the operator's S3 client, or the reason why there are none. Raises ApiError."""
        source = await self.source_secret(kept_seconds)
        return credentials_problem(self._settings, source) or s3_variables(self._settings, source or {})

    async def _s3(self, status: RLRunStatus) -> tuple[dict[str, str], Problem | None]:
        variables = await self.s3_variables(NEW_RUN_SECONDS if status.phase is None else SOURCE_SECONDS)
        if isinstance(variables, Problem):
            return {}, variables
        if status.phase is not None and status.phase.finished:
            return variables, None
        return variables, await self._artifacts.check(variables, self._settings.s3.bucket)

    async def _references(
        self, run: Obj, spec: RLRunSpec, status: RLRunStatus, variables: dict[str, str]
    ) -> dict[str, Any]:
        namespace = run["metadata"]["namespace"]
        # Include model changes that were made before the run was created.
        version = 0 if status.phase else identity_of(run)[1]
        models = await self._objects.list(RLMODEL, version=version)
        references: dict[str, Any] = {"models": tuple(models)}
        if spec.checkpoint_id:
            references |= await self._warm_start(spec.checkpoint_id, namespace, variables)
        names = {entry.secret_ref.name for entry in spec.env_from}
        model = find_model(spec.model, models)
        if not isinstance(model, Problem):
            names |= secret_names(model, run_variables(model))
            references["weights"] = await read_weights(self._cluster, cache_identity(namespace, model))
        secrets = await asyncio.gather(*(self._cluster.get(SECRET, namespace, name) for name in sorted(names)))
        return references | {"secrets": ObservedSecret.by_name(secrets)}

    async def _warm_start(self, checkpoint_id: str, run_namespace: str, variables: dict[str, str]) -> dict[str, Any]:
        namespace, name = split_checkpoint_id(checkpoint_id, run_namespace)
        checkpoint = await self._cluster.get(RLCHECKPOINT, namespace, name)
        found: dict[str, Any] = {"warm_start": checkpoint}
        is_usable = may_start_from(checkpoint, namespace, run_namespace) and is_artifact_ready(checkpoint)
        if not is_usable or not variables:
            return found
        # The phase in the object may be outdated if the run that wrote the checkpoint was deleted.
        uri = str(((checkpoint or {}).get("spec") or {}).get("uri") or "")
        try:
            return found | {"warm_start_digest": await self._artifacts.verify(variables, uri, digest_of(checkpoint))}
        except ValueError as error:
            return found | {"warm_start_digest": Problem(reason=Reason.CHECKPOINT_INCOMPLETE, message=str(error))}
        except StoreError as error:
            # The check of the bucket may be older than this error. The run waits, because its files are unknown.
            return found | {"s3_problem": error.problem}

    async def _list_artifacts(
        self, request: ListingRequest, s3_problem: Problem | None, *, is_fresh: bool
    ) -> ArtifactListing:
        if request.status.start_time is None:
            return ArtifactListing()
        if not request.variables:
            return ArtifactListing(problem=s3_problem)
        return await self._listings.list(request, is_fresh=is_fresh)

    async def _poll(self, run: Obj, pods: Sequence[Pod], status: RLRunStatus, *, is_fresh: bool) -> dict[str, Any]:
        attempt = [pod for pod in pods if pod.attempt == status.attempt]
        running = [pod for pod in attempt if pod.role == Role.orchestrator and pod.phase == "Running"]
        metadata = run["metadata"]
        key = RunKey(metadata["namespace"], metadata["name"])
        if not running or (status.phase is not None and status.phase.finished):
            self._poller.forget(key)
            return {}
        token = run_token(self._token_key, metadata["uid"]) if self._token_key else None
        is_fresh = is_fresh and not all(pod.is_leaving for pod in running)
        try:
            report: RunStatus = await self._poller.status(key, token, is_fresh=is_fresh)
        except RequestError as error:
            silent = self._poller.silent_seconds(key)
            return {"poll_error": error.problem, "silent_seconds": silent, "is_watched": self._poller.is_watched(key)}
        return {"poll": report, "is_watched": self._poller.is_watched(key)}


def _current_jobs(children: list[Obj], status: RLRunStatus) -> list[Obj]:
    """Return the Jobs of the run's current attempt, or none if the run has ended."""
    if status.phase is not None and status.phase.finished:
        return []
    return [obj for obj in children if obj["kind"] == JOB.kind and label(obj, ATTEMPT_LABEL) == str(status.attempt)]


def needs_references(status: RLRunStatus, children: list[Obj], uid: str) -> bool:
    """Return whether the spec's references must be read. True if the run is unfinished and has no readable
    configuration yet.
    """
    if status.phase is not None and status.phase.finished:
        return False
    if status.attempt_start_time is None:
        return True
    return attempt_config(children, uid, status.attempt) is None
