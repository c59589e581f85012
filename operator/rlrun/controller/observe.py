"""One look at a run: everything the plan needs, from the API server, from S3 and from the orchestrator.

Nothing here comes from a watch cache. Secrets are read by name, never listed. What a run in its phase does not need is
not asked for.
"""

import asyncio
import base64
import binascii
import logging
import time
from dataclasses import replace
from typing import Any

from rlrun.artifacts.store import StoreError
from rlrun.controller.artifacts import Artifacts
from rlrun.controller.metrics import POLL_ERRORS
from rlrun.controller.observed import Observed, SeenArtifact
from rlrun.controller.plan.artifacts import wants_to_delete
from rlrun.controller.plan.validation import parse_spec
from rlrun.controller.poll import Poller
from rlrun.kube.async_client import AsyncKubeClient
from rlrun.kube.errors import ApiError
from rlrun.kube.kinds import (
    CONFIG_MAP,
    DEPLOYMENT,
    JOB,
    NETWORK_POLICY,
    POD,
    RLADAPTER,
    RLCHECKPOINT,
    RLMODEL,
    RLRUN,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
)
from rlrun.kube.objects import Obj, is_artifact_ready, label
from rlrun.kube.pods import role_of
from rlrun.kube.references import checkpoint_place
from rlrun.resources.naming import s3_secret_name
from rlrun.resources.platform import REQUIRED_KEYS, run_layout, s3_variables
from rlrun.resources.settings import Settings
from rlrun.schema.labels import ATTEMPT_LABEL, FINALIZER, RUN_LABEL, RUN_UID_LABEL
from rlrun.schema.run_status import RLRunStatus
from rlrun.schema.wire import Problem, RunStatus
from rlrun.service.errors import RequestError

log = logging.getLogger(__name__)

SOURCE_SECONDS = 10.0
"""How long the platform's S3 Secret is remembered."""


class Observer:
    """Looks at runs."""

    def __init__(self, cluster: AsyncKubeClient, artifacts: Artifacts, poller: Poller, settings: Settings) -> None:
        self._cluster = cluster
        self._artifacts = artifacts
        self._poller = poller
        self._settings = settings
        self._source: tuple[float, dict[str, str] | None] | None = None

    async def observe(self, namespace: str, name: str) -> Observed | None:
        """Everything about that run; None when there is no such run. Raises ApiError."""
        run = await self._cluster.get(RLRUN, namespace, name)
        if run is None:
            return None
        status = RLRunStatus.parse(run.get("status"))
        uid = run["metadata"]["uid"]
        children, pods, artifact_objects = await asyncio.gather(
            self._children(namespace, name),
            self._cluster.list(POD, namespace, {RUN_LABEL: name}),
            self._artifact_objects(namespace, uid),
        )
        variables, s3_problem = await self._s3(status)
        seen: dict[str, Any] = {}
        if not run["metadata"].get("deletionTimestamp"):
            if needs_references(status, children, uid):
                seen |= await self._references(run, namespace, variables)
            # The listing comes after the pods: an orchestrator that was seen to have ended has written everything.
            seen |= await self._listing(run, status, variables, artifact_objects)
            seen |= await self._poll(namespace, name, pods, status)
        found = Observed(
            run=run,
            children=tuple(children),
            pods=tuple(pods),
            artifact_objects=tuple(artifact_objects),
            s3_variables=variables,
            s3_problem=s3_problem,
            **seen,
        )
        spec = parse_spec(run)
        purges = FINALIZER in (run["metadata"].get("finalizers") or []) and run["metadata"].get("deletionTimestamp")
        if purges or (not isinstance(spec, Problem) and wants_to_delete(found, spec)):
            found = replace(found, claims=await self._claims())
        return found

    async def pods(self, namespace: str, name: str) -> list[Obj]:
        """Pods of all runs that have, or had, that name. Raises ApiError."""
        return await self._cluster.list(POD, namespace, {RUN_LABEL: name})

    async def _claims(self) -> tuple[Obj, ...] | None:
        # After the listing, and from the API server itself: whoever starts from a checkpoint that was Ready is seen.
        try:
            return tuple(await self._cluster.list(RLRUN))
        except ApiError as error:
            log.warning("retention waits, since the runs that start from checkpoints cannot be listed: %s", error)
            return None

    async def _children(self, namespace: str, name: str) -> list[Obj]:
        selector = {RUN_LABEL: name}
        kinds = (DEPLOYMENT, JOB, SERVICE, NETWORK_POLICY, CONFIG_MAP, SERVICE_ACCOUNT)
        lists = await asyncio.gather(
            *(self._cluster.list(kind, namespace, selector) for kind in kinds),
        )
        secret = await self._cluster.get(SECRET, namespace, s3_secret_name(name))
        found = [obj for objects in lists for obj in objects]
        if secret is not None and label(secret, RUN_LABEL) == name:
            found.append(secret)
        return found

    async def _artifact_objects(self, namespace: str, uid: str) -> list[Obj]:
        selector = {RUN_UID_LABEL: uid}
        lists = await asyncio.gather(
            self._cluster.list(RLCHECKPOINT, namespace, selector),
            self._cluster.list(RLADAPTER, namespace, selector),
        )
        return [obj for objects in lists for obj in objects]

    async def source_secret(self, *, fresh: bool = False) -> dict[str, str] | None:
        """The platform's S3 credentials, decoded; None without the Secret. Remembered for a moment unless `fresh`."""
        if not fresh and self._source is not None and time.monotonic() - self._source[0] < SOURCE_SECONDS:
            return self._source[1]
        ref = self._settings.s3.credentials_secret
        secret = await self._cluster.get(SECRET, ref.namespace, ref.name)
        decoded = None if secret is None else decode_secret(secret)
        self._source = (time.monotonic(), decoded)
        return decoded

    async def _s3(self, status: RLRunStatus) -> tuple[dict[str, str], Problem | None]:
        # A run seen for the first time is judged by the credentials of now: it starts with them.
        source = await self.source_secret(fresh=status.phase is None)
        problem = credentials_problem(self._settings, source)
        if problem is not None:
            return {}, problem
        variables = s3_variables(self._settings, source or {})
        if status.phase is not None and status.phase.finished:
            return variables, None
        return variables, await self._artifacts.check(variables, self._settings.s3.bucket)

    async def _references(self, run: Obj, namespace: str, variables: dict[str, str]) -> dict[str, Any]:
        spec = run.get("spec") or {}
        models = await self._cluster.list(RLMODEL)
        found: dict[str, Any] = {"models": tuple(models)}
        checkpoint_id = spec.get("checkpointId")
        if checkpoint_id:
            place, name = checkpoint_place(checkpoint_id, namespace)
            checkpoint = found["warm_start"] = await self._cluster.get(RLCHECKPOINT, place, name)
            if is_artifact_ready(checkpoint) and variables:
                found["warm_start_problem"] = await self._lacks(checkpoint, variables)
        missing = []
        for entry in spec.get("envFrom") or []:
            ref = entry.get("secretRef") or {}
            if ref.get("optional") or await self._cluster.get(SECRET, namespace, ref.get("name", "")):
                continue
            missing.append(str(ref.get("name")))
        found["missing_secrets"] = tuple(missing)
        return found

    async def _lacks(self, checkpoint: Obj | None, variables: dict[str, str]) -> str | None:
        # The run that made it may be gone, and then nobody has looked for a long time.
        uri = str(((checkpoint or {}).get("spec") or {}).get("uri") or "")
        try:
            return await self._artifacts.verify(variables, uri)
        except ValueError as error:
            return str(error)
        except StoreError:
            return None  # S3 is away; that is said elsewhere.

    async def _listing(
        self, run: Obj, status: RLRunStatus, variables: dict[str, str], objects: list[Obj]
    ) -> dict[str, Any]:
        if status.start_time is None or not variables:
            return {}
        metadata = run["metadata"]
        ready = {
            (o["kind"], int(o["spec"]["step"])): int(o["status"]["sizeBytes"])
            for o in objects
            if is_artifact_ready(o) and "sizeBytes" in o["status"]
        }
        layout = run_layout(self._settings, metadata["namespace"], metadata["uid"])
        try:
            found: list[SeenArtifact] = await self._artifacts.list(variables, layout, ready)
        except StoreError as error:
            return {"artifacts_problem": error.problem}
        return {"artifacts": tuple(found)}

    async def _poll(self, namespace: str, name: str, pods: list[Obj], status: RLRunStatus) -> dict[str, Any]:
        running = any(
            label(p, ATTEMPT_LABEL) == str(status.attempt)
            and role_of(p) == "orchestrator"
            and p.get("status", {}).get("phase") == "Running"
            for p in pods
        )
        if not running or (status.phase is not None and status.phase.finished):
            return {}
        try:
            told: RunStatus = await self._poller.status(namespace, name)
        except RequestError as error:
            POLL_ERRORS.inc()
            return {"poll_error": error.problem.message}
        return {"poll": told}


def needs_references(status: RLRunStatus, children: list[Obj], uid: str) -> bool:
    """Whether the catalogue and the like matter: until the coming attempt has its configuration."""
    if status.phase is not None and status.phase.finished:
        return False
    if status.attempt_start_time is None:
        return True
    return not any(
        c["kind"] == "ConfigMap" and label(c, RUN_UID_LABEL) == uid and label(c, ATTEMPT_LABEL) == str(status.attempt)
        for c in children
    )


def decode_secret(secret: Obj) -> dict[str, str]:
    """A Secret's data as text; keys that are not text are left out."""
    decoded = {}
    for key, value in (secret.get("data") or {}).items():
        try:
            decoded[key] = base64.b64decode(value).decode().strip()
        except (binascii.Error, UnicodeDecodeError):
            continue
    return decoded


def credentials_problem(settings: Settings, source: dict[str, str] | None) -> Problem | None:
    """What is wrong with the platform's S3 Secret, before anybody asks S3."""
    ref = settings.s3.credentials_secret
    missing = [key for key in REQUIRED_KEYS if not (source or {}).get(key)]
    if not missing:
        return None
    what = "does not exist" if source is None else f"has no {' and no '.join(missing)}"
    return Problem(
        reason="S3CredentialsMissing",
        message=f"Secret {ref.namespace}/{ref.name} {what}: the platform team creates it with the keys "
        f"{' and '.join(REQUIRED_KEYS)}.",
    )
