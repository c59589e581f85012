"""Parses the sources of base models, and builds the errors for failed downloads. Does no I/O.

Every failure is a FatalError, whose exit code shows whether a restart may help.

s3://bucket/path                  an artifact with a manifest, verified file by file
hf://owner/name@COMMIT            a repository on the Hugging Face hub
pvc://claim/path                  mounted as is: nothing to download
oci://repository@DIGEST/path      mounted as is: nothing to download
"""

import errno
import re
from dataclasses import dataclass

from rlrun.api.model import HUB_SOURCE
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.service.errors import FatalError
from rlrun.storage.errors import NotFound, Repeat, StoreError
from rlrun.storage.layout import S3Uri

HF_FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model", "*.tiktoken")
"""Weights, configuration and tokenizers. Pickled weights (*.bin, *.pt) are excluded, because loading them can run code.
"""


@dataclass(frozen=True)
class HuggingFaceSource:
    """Repository on the Hugging Face hub, at a commit."""

    repository: str
    commit: str


@dataclass(frozen=True)
class VolumeSource:
    """Volume that is mounted where the model is expected."""


Source = S3Uri | HuggingFaceSource | VolumeSource


def parse_source(text: str) -> Source:
    """Parse the source of a model. Raises FatalError (`InvalidModelSource`) if the text is not a valid source."""
    if text.startswith("s3://"):
        try:
            uri = S3Uri.parse(text)
        except ValueError as error:
            raise _invalid(str(error)) from error
        if not uri.key:
            raise _invalid(f"{text} does not specify a folder in the bucket: write s3://bucket/path")
        return uri
    if text.startswith("hf://"):
        if not re.fullmatch(HUB_SOURCE, text):
            raise _invalid(f"{text} is not pinned to a commit: write hf://owner/name@ and the 40-character commit hash")
        repository, _, commit = text.removeprefix("hf://").partition("@")
        return HuggingFaceSource(repository, commit)
    if text.startswith(("pvc://", "oci://")):
        return VolumeSource()
    raise _invalid(
        f"{text!r} is not a model source: write s3://bucket/path, hf://owner/name@COMMIT, pvc://claim/path or "
        "oci://registry/repository@sha256:DIGEST"
    )


def store_failure(error: StoreError, source: str) -> FatalError:
    """Return the error for a failed S3 download of the model.

    If access was denied, the kubelet retries, and the operator decides when the failure is final.
    """
    if isinstance(error, NotFound):
        message = f"there is no complete model at {source}: {error.problem.message}"
        return FatalError(Problem(reason=Reason.MODEL_NOT_FOUND, message=message), ExitCode.CONFIGURATION)
    return FatalError(error.problem, ExitCode.CONFIGURATION if error.repeat is Repeat.never else ExitCode.RESTART)


def hub_failure(error: Exception, source: str) -> FatalError:
    """Return the error for an exception of huggingface_hub, matched by class name to avoid an import."""
    names = {kind.__name__ for kind in type(error).__mro__}
    detail = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
    if "GatedRepoError" in names:
        message = f"{source} is gated: accept its licence, and set HF_TOKEN in the RLModel from a Secret ({detail})"
        return FatalError(Problem(reason=Reason.MODEL_ACCESS_DENIED, message=message), ExitCode.RESTART)
    if (status := _refusal(error)) is not None:
        message = (
            f"the hub refuses access to {source} ({status}): check that HF_TOKEN is correct and has not expired "
            f"({detail})"
        )
        return FatalError(Problem(reason=Reason.MODEL_ACCESS_DENIED, message=message), ExitCode.RESTART)
    if names & {"RepositoryNotFoundError", "RevisionNotFoundError"}:
        message = f"{source} does not exist or needs a token in HF_TOKEN: {detail}"
        return FatalError(Problem(reason=Reason.MODEL_NOT_FOUND, message=message), ExitCode.CONFIGURATION)
    if "OSError" in names and getattr(error, "errno", None) == errno.ENOSPC:
        return disk_full(source)
    message = f"the hub did not deliver {source}: {type(error).__name__}: {detail}"
    return FatalError(Problem(reason=Reason.MODEL_HUB_UNREACHABLE, message=message), ExitCode.RESTART)


def _refusal(error: Exception) -> int | None:
    """Return the status with which the hub denied access, or None for another error.

    If a request has no token, the hub also returns 401 for a repository that does not exist.
    """
    response = getattr(error, "response", None)
    status = getattr(response, "status_code", None)
    sent = {str(name).lower() for name in getattr(getattr(response, "request", None), "headers", None) or ()}
    return status if status == 403 or (status == 401 and "authorization" in sent) else None


def disk_full(source: str) -> FatalError:
    """Return the error for a full disk."""
    message = f"no space left for {source}: increase the RLModel's cache.size or, if it has no cache, its pods' "
    message += "ephemeral-storage limit"
    return FatalError(Problem(reason=Reason.DISK_FULL, message=message), ExitCode.RESTART)


def _invalid(message: str) -> FatalError:
    return FatalError(Problem(reason=Reason.INVALID_MODEL_SOURCE, message=message), ExitCode.CONFIGURATION)
