"""Policy files on disk: downloaded once, complete or absent, and verified against the digest in the policy's name.

While S3 is unreachable or does not have a policy yet, the files are downloaded from the trainer.
"""

import asyncio
import logging
import shutil
from pathlib import Path

from rlrun.api.base.received import parse
from rlrun.constants import Reason
from rlrun.protocol.inference import LoadRequest
from rlrun.protocol.policy import PolicyRef
from rlrun.service.errors import ProblemError
from rlrun.storage.errors import Repeat
from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import Manifest, weights_digest
from rlrun.storage.store import NotFound, Store, StoreError, Unreachable

from rlrun_adapter_sidecar.engine.metrics import SidecarMetrics
from rlrun_adapter_sidecar.engine.trainer_fallback import PolicyUnavailable, TrainerFallback

log = logging.getLogger(__name__)


class PolicyFiles:
    """Manager of the folder that sidecar and engine share. Times are in seconds."""

    def __init__(
        self,
        source: Store,
        folder: Path,
        deadline: float,
        metrics: SidecarMetrics,
        fallback: TrainerFallback | None = None,
    ) -> None:
        self._source = source
        self._fallback = fallback
        self.folder = folder
        self.metrics = metrics
        self._deadline = deadline

    def place(self, name: str) -> Path:
        """Return the path of a policy's folder."""
        return self.folder / name

    async def fetch(self, policy: PolicyRef, manifest: Manifest | None = None) -> Path:
        """Download the policy's files, if missing, and return their folder. Raises ProblemError
        `AdapterDownloadFailed`.

        `manifest` lists the files. If it is None, the manifest in S3 is used.
        """
        dest = self.place(policy.name)
        if await asyncio.to_thread(_is_whole, dest, policy):
            return dest
        try:
            uri = S3Uri.parse(policy.uri)
            with self.metrics.download_seconds.time():
                brought = await asyncio.wait_for(self._download(policy, uri, dest, manifest), self._deadline)
        except ValueError as error:
            raise _download_failure(422, str(error)) from error
        except TimeoutError as error:
            message = f"the download of {policy.uri} took longer than {self._deadline:g} s"
            raise _download_failure(504, message) from error
        except StoreError as error:
            status = 424 if error.repeat is Repeat.never else 503
            raise _download_failure(status, f"{error.problem.reason}: {error.problem.message}") from error
        except PolicyUnavailable as error:
            raise _download_failure(503, str(error)) from error
        except OSError as error:
            message = f"{dest} cannot be written: {error}; check the volume `adapters` of the pod"
            raise _download_failure(507, message) from error
        self.metrics.bytes.inc(brought.size)
        if not _matches(brought, policy):
            await asyncio.to_thread(shutil.rmtree, dest, True)
            raise _download_failure(
                424, f"the weights at {policy.uri} do not match the digest in {policy.name}; publish the policy again"
            )
        return dest

    async def _download(self, policy: PolicyRef, uri: S3Uri, dest: Path, manifest: Manifest | None) -> Manifest:
        def check(found: Manifest) -> None:
            self.check_size(policy.name, found)

        url = policy.fallback if isinstance(policy, LoadRequest) else None
        if self._fallback is None or url is None:
            manifest = manifest or await asyncio.to_thread(self._source.read_manifest, uri)
            if manifest is None:
                raise NotFound(f"{uri} has no {MANIFEST}: the upload is not complete, or the URI is wrong")
            check(manifest)
            return await asyncio.to_thread(self._source.download, uri, dest, manifest)
        why = "S3Unreachable: S3 did not respond recently"
        if not self._fallback.s3_unreachable:
            try:
                return await self._fallback.from_s3(uri, dest, check)
            except (Unreachable, NotFound) as error:
                why = f"{error.problem.reason}: {error.problem.message}"
        try:
            found = await self._fallback.fetch(url, dest, lambda found: _matches(found, policy), check)
        except PolicyUnavailable as error:
            raise PolicyUnavailable(f"{why}; the fallback download from the trainer failed too: {error}") from error
        log.info("downloaded %s from the trainer (%s)", policy.name, why)
        return found

    def check_size(self, name: str, manifest: Manifest) -> None:
        """Raise ProblemError if the policy is too large. Called before its files are requested. This class accepts
        every size; subclasses may set a limit.
        """

    async def remove(self, name: str) -> None:
        """Delete the policy's files, if any."""
        await asyncio.to_thread(shutil.rmtree, self.place(name), True)

    async def keep_only(self, names: set[str]) -> None:
        """Delete the files of all policies except `names`, and leftovers of interrupted downloads."""
        await asyncio.to_thread(self._keep_only, names)

    def _keep_only(self, names: set[str]) -> None:
        for path in self.folder.iterdir():
            if path.is_dir() and path.name not in names:
                shutil.rmtree(path, ignore_errors=True)


def _matches(manifest: Manifest, policy: PolicyRef) -> bool:
    # A reference may have only the digits that are part of the name.
    return (weights_digest(manifest.files, policy.kind) or "").startswith(policy.digest)


def _is_whole(folder: Path, policy: PolicyRef) -> bool:
    # A folder appears by rename after verification, so this check only guards against another policy's files.
    try:
        manifest = parse(Manifest, (folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    files = [(folder / entry.name, entry.size) for entry in manifest.files]
    return _matches(manifest, policy) and all(path.is_file() and path.stat().st_size == size for path, size in files)


def _download_failure(status: int, message: str) -> ProblemError:
    return ProblemError.of(status, Reason.ADAPTER_DOWNLOAD_FAILED, message)
