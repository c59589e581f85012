"""Where a base model comes from, and what can go wrong on the way: the decisions, without I/O.

s3://bucket/path                  an artifact with a manifest, verified file by file
hf://owner/name[@revision]        a repository of the Hugging Face hub
pvc://claim/path                  mounted as it is: nothing to fetch
"""

import re
from dataclasses import dataclass

from rlrun.artifacts.layout import S3Uri
from rlrun.artifacts.store import AccessDenied, BucketMissing, Corrupt, NotFound, StoreError
from rlrun.schema.wire import Problem

HF_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Weights, configuration and tokenizers. Pickled weights (*.bin, *.pt) can run code when loaded: never fetched."""
HF_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")

PERMANENT = (NotFound, AccessDenied, BucketMissing, Corrupt)


class FetchError(Exception):
    """The model could not be had; `permanent` when another try would end the same."""

    def __init__(self, problem: Problem, permanent: bool) -> None:
        super().__init__(f"{problem.reason}: {problem.message}")
        self.problem = problem
        self.permanent = permanent


@dataclass(frozen=True)
class HubSource:
    """A repository of the hub at a revision (branch, tag or commit)."""

    repository: str
    revision: str | None = None


@dataclass(frozen=True)
class ClaimSource:
    """A volume that is mounted where the model is expected."""


Source = S3Uri | HubSource | ClaimSource


def parse_source(text: str) -> Source:
    """Raises FetchError (permanent, `InvalidModelSource`) for anything else."""
    if text.startswith("s3://"):
        try:
            uri = S3Uri.parse(text)
        except ValueError as error:
            raise _invalid(str(error)) from error
        if not uri.key:
            raise _invalid(f"{text} names no folder in the bucket: write s3://bucket/path")
        return uri
    if text.startswith("hf://"):
        repository, _, revision = text.removeprefix("hf://").partition("@")
        if not HF_REPOSITORY.fullmatch(repository):
            raise _invalid(f"{text} is no repository: write hf://owner/name or hf://owner/name@revision")
        return HubSource(repository, revision or None)
    if text.startswith("pvc://"):
        return ClaimSource()
    raise _invalid(f"{text!r} is no model source: write s3://bucket/path, hf://owner/name or pvc://claim/path")


def store_failure(error: StoreError, source: str) -> FetchError:
    """What a failed S3 download means for the model."""
    if isinstance(error, NotFound):
        message = f"there is no complete model at {source}: {error.problem.message}"
        return FetchError(Problem(reason="ModelNotFound", message=message), permanent=True)
    return FetchError(error.problem, permanent=isinstance(error, PERMANENT))


def hub_failure(error: Exception, source: str) -> FetchError:
    """What an exception of huggingface_hub means; told apart by class name, so that this needs no import of it."""
    names = {kind.__name__ for kind in type(error).__mro__}
    words = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
    if "GatedRepoError" in names:
        message = f"{source} is gated: accept its licence and give the pods a token in HF_TOKEN ({words})"
        return FetchError(Problem(reason="ModelAccessDenied", message=message), permanent=True)
    if names & {"RepositoryNotFoundError", "RevisionNotFoundError"}:
        message = f"{source} does not exist or needs a token in HF_TOKEN: {words}"
        return FetchError(Problem(reason="ModelNotFound", message=message), permanent=True)
    if "OSError" in names and getattr(error, "errno", None) == 28:
        message = f"no space left for {source}: give the pod more ephemeral storage or use pvc://"
        return FetchError(Problem(reason="DiskFull", message=message), permanent=False)
    message = f"the hub does not give {source}: {type(error).__name__}: {words}"
    return FetchError(Problem(reason="ModelHubUnreachable", message=message), permanent=False)


def _invalid(message: str) -> FetchError:
    return FetchError(Problem(reason="InvalidModelSource", message=message), permanent=True)
