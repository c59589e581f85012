"""Downloads a model into a folder, unless the folder already contains the complete model.

The folder may be on a volume that outlives the process. An interrupted download never counts as complete: the next
download from the hub reuses complete files, and the next download from S3 starts again.
"""

import errno
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path

from rlrun.api.base.proxy_rules import ProxyRules, missing_entries
from rlrun.api.base.received import parse
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.problem import Problem
from rlrun.service.errors import FatalError
from rlrun.storage.layout import MANIFEST, S3Uri
from rlrun.storage.manifest import Manifest
from rlrun.storage.store import Store, StoreError

from rlrun_model_fetcher.sources import (
    HF_FILES,
    HuggingFaceSource,
    VolumeSource,
    disk_full,
    hub_failure,
    parse_source,
    store_failure,
)

PROGRESS_SECONDS = 5.0
HUB_MARK = ".rlrun-complete"
Say = Callable[[str], None]


def fetch(text: str, dest: Path, store: Callable[[], Store], say: Say = print) -> None:
    """Download the model at the URI `text` to `dest`, unless it already exists there. Raises FatalError.

    `store` is called only for s3:// sources.
    """
    source = parse_source(text)
    try:
        if isinstance(source, VolumeSource):
            say(f"{text} is mounted; nothing to fetch")
        elif isinstance(source, S3Uri):
            _from_s3(source, dest, store(), say)
        else:
            _from_hub(source, dest, say)
    except StoreError as error:
        raise store_failure(error, text) from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise disk_full(text) from error
        message = f"{dest} cannot be written: {error}; check the volume that holds the model"
        raise FatalError(Problem(reason=Reason.MODEL_FOLDER_NOT_WRITABLE, message=message), ExitCode.RESTART) from error


def _from_s3(uri: S3Uri, dest: Path, store: Store, say: Say) -> None:
    manifest = store.read_manifest(uri)
    if manifest is None:
        message = f"{uri} has no {MANIFEST}: upload the model as an artifact or correct the RLModel's source"
        raise FatalError(Problem(reason=Reason.MODEL_NOT_FOUND, message=message), ExitCode.CONFIGURATION)
    if _is_complete(dest, manifest):
        say(f"{uri} is already in {dest}")
        return
    say(f"fetching {uri}: {len(manifest.files)} files, {_size(manifest.size)}")
    started = time.monotonic()
    for left in dest.parent.glob(f".{dest.name}-*"):
        # An interrupted download of this folder.
        shutil.rmtree(left, ignore_errors=True)
    with _progress(dest.parent, manifest.size, say):
        store.download(uri, dest, manifest)
    say(f"fetched and verified {_size(manifest.size)} in {time.monotonic() - started:.1f} s")


def name_direct_hosts(environment: MutableMapping[str, str], urls: Iterable[str]) -> None:
    """Add hosts of `urls` to NO_PROXY if NO_PROXY lists only a network that contains them, because the hub's client
    ignores networks.
    """
    rules = ProxyRules.of_environment(environment)
    if missing := missing_entries(rules, urls):
        environment["NO_PROXY"] = environment["no_proxy"] = ",".join((*rules.direct, *missing))


def _from_hub(source: HuggingFaceSource, dest: Path, say: Say) -> None:
    name_direct_hosts(os.environ, [os.environ.get("HF_ENDPOINT", "")])
    from huggingface_hub import snapshot_download

    wanted = f"{source.repository}@{source.commit}"
    mark = dest / HUB_MARK
    if mark.is_file() and mark.read_text() == wanted:
        say(f"hf://{wanted} is already in {dest}")
        return
    say(f"fetching hf://{wanted}")
    dest.mkdir(parents=True, exist_ok=True)
    for left in (dest / ".cache").rglob("*.incomplete"):
        # From an interrupted download. huggingface_hub gives each process its own files and reuses none.
        left.unlink(missing_ok=True)
    started = time.monotonic()
    try:
        with _progress(dest, None, say):
            snapshot_download(source.repository, revision=source.commit, local_dir=dest, allow_patterns=list(HF_FILES))
    except Exception as error:
        raise hub_failure(error, f"hf://{wanted}") from error
    if not any(dest.glob("*.safetensors")):
        message = f"hf://{wanted} has no safetensors weights; use a commit or a repository that has them"
        raise FatalError(Problem(reason=Reason.MODEL_NOT_FOUND, message=message), ExitCode.CONFIGURATION)
    # Write the mark before deleting `.cache`: without either of them, huggingface_hub would compute the digest of each
    # file again.
    mark.with_suffix(".new").write_text(wanted)
    mark.with_suffix(".new").replace(mark)
    # huggingface_hub's folder for partial downloads is not part of the model.
    shutil.rmtree(dest / ".cache", ignore_errors=True)
    say(f"fetched {_size(_bytes_below(dest))} in {time.monotonic() - started:.1f} s")


def _is_complete(dest: Path, manifest: Manifest) -> bool:
    try:
        there = parse(Manifest, (dest / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    sizes = {entry.name: entry.size for entry in manifest.files}
    return there.files == manifest.files and all(
        (dest / name).is_file() and (dest / name).stat().st_size == size for name, size in sizes.items()
    )


@contextmanager
def _progress(folder: Path, total: int | None, say: Say) -> Iterator[None]:
    """Print a line every few seconds with the number of bytes added below `folder`."""
    done = threading.Event()
    before = _bytes_below(folder)

    def watch() -> None:
        while not done.wait(PROGRESS_SECONDS):
            now = _bytes_below(folder) - before
            say(f"  {_size(now)}" + (f" of {_size(total)} ({100 * now // max(total, 1)} %)" if total else ""))

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _bytes_below(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue  # Renamed in the meantime.
    return total


def _size(count: int) -> str:
    return f"{count / 1e9:.2f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"
