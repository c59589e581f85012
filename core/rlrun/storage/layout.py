"""URIs of artifacts in S3.

{prefix}/{namespace}/{run-uid}/run.json
                              /policy/v000041-1a2b3c4d/     adapter or weights that engines load in the run (pruned)
                              /checkpoints/step-000040/     complete state to resume from
                              /checkpoints/saved-states.json   names of a client's saved states (driver: Client)
                              /recovery/step-000043/        recovery copy of a shared pool's trainer (pruned)
                              /adapters/step-000040/        adapters for download and deployment
                              /metrics/part-*.jsonl
                              /rollouts/step-000040.jsonl.zst       trained on; also .val-{env}, .eval-{env}, .filtered
                              /rollouts/steps/part-*.jsonl          one line per step and object
                              /logs/attempt-1/{pod}/{container}.log
                              /orchestrator/*.json          state of the orchestrator
                              /wandb/                       data for Weights & Biases
{prefix}/environments/{owner}/{name}/{version}/*.whl
{prefix}/environments/{owner}/.owner                        uid of the namespace that owns the packages
{prefix}/models/{owner}/{name}/                             weights for RLModels with an s3:// source
{prefix}/rlrun.probe/{random}/                              tests of the S3 server by rlrun-server, deleted afterwards
{prefix}/rlrun.deleted/{namespace}/{run-uid}/run.json       tombstone of a deleted run
                                            /checkpoints/step-000040.json   tombstone of a deleted checkpoint or adapter
{prefix}/rlrun.installation/mark.json                       names the cluster that may delete below the prefix
{prefix}/rlrun.usage/2026-01/31.{operator}.jsonl            usage log of one day
"""

import hashlib
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from rlrun.api.base.names import package_name
from rlrun.protocol.policy import PolicyKind

MANIFEST = "manifest.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
"""File name of the weights of a LoRA adapter, as in peft."""
MODEL_WEIGHTS = "model.safetensors"
"""File name of all weights of a model, as in transformers."""
RUN_UID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
"""Pattern of a run's UID, which is the name of the run's folder."""
WEIGHTS = {PolicyKind.adapter: ADAPTER_WEIGHTS, PolicyKind.weights: MODEL_WEIGHTS}
"""Name of the file with the weights, whose digest is part of a policy's name. Large weights are split into numbered
files (shards) instead.
"""
NUMBERED = re.compile(r"-\d{5}-of-(\d{5})(?=\.[a-z]+$)")
"""Pattern of the number in a shard's file name, as in transformers: `-00001-of-00002` in
model-00001-of-00002.safetensors. The group is the number of shards.
"""


@dataclass(frozen=True)
class S3Uri:
    """URI `s3://bucket/key`, to which `/` appends path segments."""

    bucket: str
    key: str

    @classmethod
    def parse(cls, text: str) -> "S3Uri":
        """Parse s3://bucket[/key]. Raises ValueError."""
        if not text.startswith("s3://"):
            raise ValueError(f"{text!r} is not an s3:// URI: use s3://bucket/path")
        bucket, _, key = text.removeprefix("s3://").partition("/")
        if not bucket:
            raise ValueError(f"{text!r} names no bucket: use s3://bucket/path")
        return cls(bucket, key.strip("/"))

    def __truediv__(self, part: str) -> "S3Uri":
        return S3Uri(self.bucket, f"{self.key}/{part}".strip("/"))

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.key}"


@dataclass(frozen=True)
class RunLayout:
    """URIs of one run below its root `{prefix}/{namespace}/{run-uid}`."""

    root: S3Uri

    @classmethod
    def of(cls, bucket: str, prefix: str, namespace: str, run_uid: str) -> "RunLayout":
        """Return the layout of the run with this UID in this namespace."""
        return cls(S3Uri(bucket, "/".join(p for p in (prefix.strip("/"), namespace, run_uid) if p)))

    @property
    def run_json(self) -> S3Uri:
        """Object for the resolved run. This version does not write it."""
        return self.root / "run.json"

    @property
    def policies(self) -> S3Uri:
        """Folder of all published policies."""
        return self.root / "policy"

    def policy(self, version: int, digest: str) -> S3Uri:
        """Return the folder of a published policy. The digest distinguishes policies of the same version, for
        example if a step is repeated after a restart.
        """
        return self.policies / f"v{version:06d}-{digest[:8]}"

    @property
    def checkpoints(self) -> S3Uri:
        """Folder of all checkpoints."""
        return self.root / "checkpoints"

    def checkpoint(self, step: int) -> S3Uri:
        """Return the folder of the checkpoint after `step` steps or, for `driver: Client`, of call `step`."""
        return self.checkpoints / f"step-{step:06d}"

    @property
    def saved_states(self) -> S3Uri:
        """Object with the names of the saved states of a run with `driver: Client`."""
        return self.checkpoints / "saved-states.json"

    @property
    def recovery(self) -> S3Uri:
        """Folder of the recovery copies."""
        return self.root / "recovery"

    def recovery_copy(self, step: int) -> S3Uri:
        """Return the folder of the recovery copy after `step` steps or, for `driver: Client`, after call `step`."""
        return self.recovery / f"step-{step:06d}"

    @property
    def adapters(self) -> S3Uri:
        """Folder of all adapter artifacts."""
        return self.root / "adapters"

    def adapter(self, step: int) -> S3Uri:
        """Return the folder of the adapter artifact after `step` steps or, for `driver: Client`, of call `step`."""
        return self.adapters / f"step-{step:06d}"

    def metrics(self, part: str) -> S3Uri:
        """Return the URI of one file with metric lines."""
        return self.root / f"metrics/{part}.jsonl"

    def rollouts(self, step: int, use: str = "") -> S3Uri:
        """Return the URI of a step's rollouts. `use` is empty for rollouts that were trained on, or else `filtered`,
        `val-NAME` or `eval-NAME`, where NAME is the environment's `file_name`.
        """
        return self.root / f"rollouts/{rollouts_name(step, use)}"

    def rollout_summaries(self, part: str) -> S3Uri:
        """Return the URI of one file with summaries of stored rollouts."""
        return self.root / f"rollouts/steps/{part}.jsonl"

    @property
    def logs(self) -> S3Uri:
        """Folder of the container logs of all attempts."""
        return self.root / "logs"

    def log(self, attempt: int, pod: str, container: str, previous: bool = False) -> S3Uri:
        """Return the URI of a container's log or, if `previous` is true, of the log from before the container's latest
        restart.
        """
        name = f"{container}.previous.log" if previous else f"{container}.log"
        return self.logs / f"attempt-{attempt}/{pod}/{name}"


def rollouts_name(step: int, use: str = "") -> str:
    """Return the name of the object with a step's rollouts, relative to the folder of all rollouts."""
    return f"step-{step:06d}{'.' if use else ''}{use}.jsonl.zst"


ROLLOUTS_NAME = re.compile(r"step-(?P<step>\d{6,9})(\.(?P<use>filtered|(val|eval)-[A-Za-z0-9._-]+))?\.jsonl\.zst")


def parse_rollouts_name(name: str) -> tuple[int, str] | None:
    """Return the arguments `step` and `use` for which `rollouts_name` returns `name`, or None if there are none."""
    match = ROLLOUTS_NAME.fullmatch(name)
    return None if match is None else (int(match["step"]), match["use"] or "")


def file_name(environment: str) -> str:
    """Convert an environment's name to a part of a file name.

    Spaces are replaced, because S3 clients encode them differently. A digest keeps names with spaces distinct.
    """
    if " " not in environment:
        return environment
    digest = hashlib.blake2b(environment.encode(), digest_size=4).hexdigest()
    return f"{environment.replace(' ', '-')}.{digest}"


def step_of(folder: str) -> int:
    """Return the step in a folder name like `step-000040`. Raises ValueError on any other name."""
    name = folder.rstrip("/").rsplit("/", 1)[-1]
    head, _, digits = name.partition("-")
    if head != "step" or not digits.isdigit():
        raise ValueError(f"{folder!r} is not a step folder")
    return int(digits)


ENVIRONMENTS_FOLDER, MODELS_FOLDER = "environments", "models"
SHARED_FOLDERS = (ENVIRONMENTS_FOLDER, MODELS_FOLDER)
"""Folders with files that users upload."""
PROBE_FOLDER = "rlrun.probe"
"""Folder in which rlrun-server tests the S3 server. The dot prevents a conflict with a namespace, because names of
namespaces contain no dots.
"""
DELETED_FOLDER = "rlrun.deleted"
"""Folder of tombstones (`rlrun.garbage_collection.tombstones`)."""
INSTALLATION_FOLDER = "rlrun.installation"
"""Folder of the object that names the cluster that may delete files (`rlrun.garbage_collection.installation`)."""
USAGE_FOLDER = "rlrun.usage"
"""Folder of the usage log."""
PLATFORM_FOLDERS = (*SHARED_FOLDERS, PROBE_FOLDER, DELETED_FOLDER, INSTALLATION_FOLDER, USAGE_FOLDER)
"""Folders directly below the prefix that do not belong to a namespace."""


def usage_month(root: S3Uri, month: datetime) -> S3Uri:
    """Return the folder with the usage log of one month. `root` is `s3://bucket/prefix`."""
    return root / USAGE_FOLDER / f"{month.astimezone(UTC):%Y-%m}"


def usage_day(root: S3Uri, operator: str, day: datetime) -> S3Uri:
    """Return the file with the usage log of one day. `operator` is the name of the operator's Lease."""
    return usage_month(root, day) / f"{day.astimezone(UTC):%d}.{operator}.jsonl"


def package_owner_record(root: S3Uri, owner: str) -> S3Uri:
    """Return the URI of the object with the uid of the namespace that owns the packages of `owner`. Users must not
    write this object.
    """
    return root / ENVIRONMENTS_FOLDER / owner / ".owner"


def environment_package(bucket: str, prefix: str, owner: str, name: str) -> S3Uri:
    """Return the folder of an environment package, which has one subfolder per version. All spellings of the package's
    name lead to the same folder.
    """
    parts = (prefix.strip("/"), ENVIRONMENTS_FOLDER, owner, package_name(name))
    return S3Uri(bucket, "/".join(part for part in parts if part))
