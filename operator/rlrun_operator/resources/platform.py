"""ServiceAccount, tokens and configuration of a run's pods, and the platform's S3 credentials."""

import base64
from collections.abc import Mapping, Sequence

from rlrun.api.base.rules import ADMITTED
from rlrun.api.model import RLModelSpec
from rlrun.api.run import RLRunSpec
from rlrun.api.run_status import EnvironmentPackage
from rlrun.constants import ENVIRONMENT_PORT, GATEWAY_PORT, REFERENCES_ANNOTATION, TRAINER_PORT, Reason
from rlrun.kube.objects import Obj
from rlrun.protocol.problem import Problem
from rlrun.protocol.resolved import (
    CONFIG_KEY,
    ArtifactPlaces,
    ArtifactRef,
    AttemptIdentity,
    Endpoints,
    EnvironmentEndpoint,
    EnvironmentUse,
    ResolvedRun,
)
from rlrun.protocol.shared_pool import pool_trainer_name
from rlrun.storage.layout import RunLayout, S3Uri

from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.resources.base.naming import OwnerIdentity, RunIdentity
from rlrun_operator.resources.environment import environment_entries

REQUIRED_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
CREDENTIAL_KEYS = (*REQUIRED_KEYS, "AWS_SESSION_TOKEN")
LARGE_CONFIG = 64 * 1024
"""Length in characters above which a configuration is not indented, because indentation would make it several times as
long.
"""


def service_account(identity: OwnerIdentity) -> Obj:
    """Return a ServiceAccount without permissions. Its token is mounted only with the audience of rlrun-server."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": identity.metadata(identity.service_account),
        "automountServiceAccountToken": False,
    }


def s3_variables(settings: OperatorSettings, source: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the operator's S3 client, from the decoded platform Secret and the settings.

    The connection comes only from the settings, as for rlrun-server and the pods. If `source` has no credentials, boto3
    uses a workload identity.
    """
    return settings.s3.variables | {key: source[key] for key in CREDENTIAL_KEYS if source.get(key)}


def secret(identity: OwnerIdentity, name: str, variables: Mapping[str, str]) -> Obj:
    """Return a Secret of a run or a serving pool with these variables, which contain tokens or keys."""
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": identity.metadata(name),
        "type": "Opaque",
        "data": {k: base64.b64encode(v.encode()).decode() for k, v in sorted(variables.items())},
    }


def config_map(identity: RunIdentity, resolved: ResolvedRun, signature: str) -> Obj:
    """Return the ConfigMap with the resolved run as JSON. `signature` is the signature of the run's references, or an
    empty string.
    """
    metadata = identity.metadata(identity.config)
    text = resolved.model_dump_json(by_alias=True, exclude_none=True)
    if (indent := config_indent(len(text))) is not None:
        text = resolved.model_dump_json(by_alias=True, exclude_none=True, indent=indent)
    if signature:
        metadata["annotations"][REFERENCES_ANNOTATION] = signature
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata,
        "data": {CONFIG_KEY: text},
    }


def config_indent(size: int) -> int | None:
    """Return the indentation of a configuration of this size, or None if it is not indented."""
    return 1 if size <= LARGE_CONFIG else None


def run_layout(settings: OperatorSettings, namespace: str, run_uid: str) -> RunLayout:
    """Return the layout of the run's artifacts in S3."""
    return RunLayout.of(settings.s3.bucket, settings.s3.prefix, namespace, run_uid)


def is_in_own_folder(artifact: Obj, settings: OperatorSettings) -> bool:
    """Return whether the URI of an RLCheckpoint or RLAdapter is the URI to which its run writes.

    Users can create these objects, and a forged URI would give them access to files of other namespaces.
    """
    spec, namespace = artifact["spec"], artifact["metadata"]["namespace"]
    uid, step = str(spec["runUid"]), int(spec["step"])
    layout = run_layout(settings, namespace, uid)
    own = layout.checkpoint(step) if artifact["kind"] == "RLCheckpoint" else layout.adapter(step)
    # A uid with slashes could point to the folder of another run.
    return "/" not in uid and ".." not in uid and spec["uri"] == str(own)


def resolve(
    identity: RunIdentity,
    settings: OperatorSettings,
    spec: RLRunSpec,
    model: RLModelSpec,
    warm_start: ArtifactRef | None,
    packages: Sequence[EnvironmentPackage] = (),
    pool: str | None = None,
) -> ResolvedRun:
    """Return the configuration of the attempt's processes. `packages` are the packages that the run started with.
    `pool` is the name of the run's shared pool, or None if the run has engines of its own.
    """
    trainer = pool_trainer_name(pool) if pool is not None and model.trainer.is_shareable else identity.trainer
    spec = _with_defaults(spec, settings, model, identity.namespace)
    root = S3Uri(settings.s3.bucket, settings.s3.prefix.strip("/"))
    # Do not check the spec's rules again: the run was accepted earlier.
    return ResolvedRun.model_validate(
        {
            "run": AttemptIdentity(
                namespace=identity.namespace, name=identity.name, uid=identity.uid, attempt=identity.attempt
            ),
            "spec": spec,
            "model": model,
            "endpoints": Endpoints(
                trainer_url=f"http://{identity.service_host(trainer)}:{TRAINER_PORT}",
                inference_host=identity.service_host(pool or identity.inference),
                pool=pool,
                gateway_url=f"http://{identity.service_host(identity.orchestrator)}:{GATEWAY_PORT}",
                environments=[
                    EnvironmentEndpoint(
                        name=item.entry.effective_name,
                        id=item.entry.package_id,
                        url=f"http://{identity.service_host(identity.child(item.component))}:{ENVIRONMENT_PORT}",
                        use=EnvironmentUse(item.use),
                    )
                    for item in environment_entries(spec)
                ],
            ),
            "artifacts": ArtifactPlaces(
                run_uri=str(run_layout(settings, identity.namespace, identity.uid).root),
                environments_uri=str(root / "environments"),
            ),
            "warm_start_from": warm_start and warm_start.uri,
            "warm_start_digest": warm_start and warm_start.digest,
            "environment_packages": list(packages),
        },
        context=ADMITTED,
    )


def _with_defaults(spec: RLRunSpec, settings: OperatorSettings, model: RLModelSpec, namespace: str) -> RLRunSpec:
    """Return the spec, with unset fields set to the defaults of platform, model and namespace."""
    interval = spec.checkpoints.interval or settings.defaults.checkpoint_interval
    max_tokens = spec.sampling.max_tokens or model.max_tokens_of_runs
    wandb = spec.wandb and spec.wandb.model_copy(update={"project": spec.wandb.project or namespace})
    return spec.model_copy(
        update={
            "checkpoints": spec.checkpoints.model_copy(update={"interval": interval}),
            "sampling": spec.sampling.model_copy(update={"max_tokens": max_tokens}),
            "wandb": wandb,
        }
    )


def credentials_problem(settings: OperatorSettings, source: dict[str, str] | None) -> Problem | None:
    """Return the problem with the platform's S3 Secret, or None if the Secret has all required keys or is not used."""
    ref = settings.s3.credentials_secret
    if ref is None:
        return None
    missing = [key for key in REQUIRED_KEYS if not (source or {}).get(key)]
    if not missing:
        return None
    if source is None:
        what = f"does not exist. The platform team must create it with the keys {' and '.join(REQUIRED_KEYS)}."
    else:
        what = f"has no {' and no '.join(missing)}. The platform team must add what is missing."
    return Problem(reason=Reason.S3_CREDENTIALS_MISSING, message=f"Secret {ref.namespace}/{ref.name} {what}")
