"""Sources, failures and idempotence of the model fetcher."""

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest
from rlrun.constants import ExitCode
from rlrun.service.errors import FatalError
from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import AccessDenied, BucketMissing, StoreError, Unreachable
from rlrun_model_fetcher import __main__ as command
from rlrun_model_fetcher.fetcher import fetch
from rlrun_model_fetcher.sources import HuggingFaceSource, VolumeSource, parse_source

from tests.support.fake_s3 import InMemoryStore

COMMIT = "1cfa9a7208912126459214e8b04321603b3df60c"
FILES = {"config.json": b"{}", "model.safetensors": b"w" * 1000}


def store_with(files: dict[str, bytes], fail: StoreError | None = None) -> InMemoryStore:
    """A store with this model at s3://b/m."""
    store = InMemoryStore("b")
    if files:
        store.publish("s3://b/m", files, ArtifactKind.model)
    store.fail = fail
    return store


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("s3://b/models/x", S3Uri("b", "models/x")),
        (f"hf://Qwen/Qwen3-4B@{COMMIT}", HuggingFaceSource("Qwen/Qwen3-4B", COMMIT)),
        ("pvc://claim/path", VolumeSource()),
        (f"oci://registry:5000/models/a@sha256:{'0' * 64}/a", VolumeSource()),
    ],
)
def test_sources(text, source):
    assert parse_source(text) == source


INVALID_SOURCES = [
    "s3://bucket",
    "s3:///x",
    f"hf://only-name@{COMMIT}",
    f"hf://a/../b@{COMMIT}",
    "hf://a/b",
    "hf://a/b@",
    "hf://a/b@main",
    f"hf://a/b@{COMMIT[:12]}",
    "/models",
    "gs://b/x",
]


@pytest.mark.parametrize("text", INVALID_SOURCES)
def test_an_invalid_model_source_is_a_configuration_error(text):
    with pytest.raises(FatalError) as error:
        parse_source(text)
    assert (error.value.exit_code, error.value.problem.reason) == (ExitCode.CONFIGURATION, "InvalidModelSource")


def test_s3_twice_downloads_once_and_a_new_model_again(tmp_path):
    store, lines = store_with(FILES), []
    fetch("s3://b/m", tmp_path / "base", lambda: store, lines.append)
    assert (tmp_path / "base" / "model.safetensors").read_bytes() == FILES["model.safetensors"]
    fetch("s3://b/m", tmp_path / "base", lambda: store, lines.append)
    assert store.downloads == 1
    assert "already" in lines[-1]
    (tmp_path / "base" / "model.safetensors").write_bytes(b"cut")
    fetch("s3://b/m", tmp_path / "base", lambda: store, lines.append)
    assert store.downloads == 2
    newer = store_with(FILES | {"config.json": b"[]"})
    fetch("s3://b/m", tmp_path / "base", lambda: newer, lines.append)
    assert newer.downloads == 1


@pytest.mark.parametrize(
    ("store", "reason", "exit_code"),
    [
        (store_with({}), "ModelNotFound", ExitCode.CONFIGURATION),
        (store_with(FILES, AccessDenied("no")), "S3AccessDenied", ExitCode.RESTART),
        (store_with(FILES, BucketMissing("no")), "S3BucketMissing", ExitCode.RESTART),
        (store_with(FILES, Unreachable("silent")), "S3Unreachable", ExitCode.RESTART),
    ],
)
def test_s3_failures(tmp_path, monkeypatch, caplog, store, reason, exit_code):
    monkeypatch.setattr(command.Store, "of_process", lambda: store)
    monkeypatch.setenv("RLRUN_TERMINATION_LOG", str(tmp_path / "log"))
    assert command.main(["s3://b/m", str(tmp_path / "base")]) == exit_code
    problem = json.loads((tmp_path / "log").read_text())
    assert problem["reason"] == reason
    assert problem["message"]
    assert reason in caplog.text


def test_a_model_folder_that_cannot_be_created_is_reported(tmp_path):
    (tmp_path / "file").write_text("")
    store = store_with(FILES)
    with pytest.raises(FatalError, match="ModelFolderNotWritable"):
        fetch("s3://b/m", tmp_path / "file" / "base", lambda: store, lambda _: None)


def test_a_model_on_a_claim_is_not_downloaded(tmp_path):
    fetch("pvc://claim/m", tmp_path, lambda: pytest.fail("S3 was asked"), lambda _: None)


@pytest.fixture
def hub(monkeypatch) -> Callable[..., list[dict[str, object]]]:
    """In place of huggingface_hub: writes files or raises, and tells what it was asked."""

    def install(files: dict[str, bytes], error: Exception | None = None) -> list[dict[str, object]]:
        calls: list[dict[str, object]] = []

        def snapshot_download(repository: str, *, revision: str, local_dir: Path, allow_patterns: list[str]) -> None:
            calls.append({"repository": repository, "revision": revision, "patterns": allow_patterns})
            if error:
                raise error
            for name, data in files.items():
                (local_dir / name).write_bytes(data)

        module = types.ModuleType("huggingface_hub")
        module.snapshot_download = snapshot_download  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "huggingface_hub", module)
        return calls

    return install


def test_the_hub_is_asked_for_safe_files_only_and_once(tmp_path, hub):
    calls = hub(FILES)
    for _ in range(2):
        fetch(f"hf://o/m@{COMMIT}", tmp_path / "base", InMemoryStore, lambda _: None)
    assert len(calls) == 1
    assert (calls[0]["repository"], calls[0]["revision"]) == ("o/m", COMMIT)
    assert not any(str(p).endswith((".bin", ".pt", ".py")) for p in calls[0]["patterns"])


class RepositoryNotFoundError(Exception):
    pass


class GatedRepoError(RepositoryNotFoundError):
    pass


def answered(status, headers):
    """What huggingface_hub raises for this answer to a request with these headers."""
    error = RepositoryNotFoundError(f"{status} Client Error")
    request = types.SimpleNamespace(headers=headers)
    error.response = types.SimpleNamespace(status_code=status, request=request)
    return error


@pytest.mark.parametrize(
    ("error", "reason", "exit_code"),
    [
        (RepositoryNotFoundError("401"), "ModelNotFound", ExitCode.CONFIGURATION),
        (GatedRepoError("403"), "ModelAccessDenied", ExitCode.RESTART),
        (answered(401, {"Authorization": "Bearer old"}), "ModelAccessDenied", ExitCode.RESTART),
        (answered(403, {}), "ModelAccessDenied", ExitCode.RESTART),
        (answered(401, {}), "ModelNotFound", ExitCode.CONFIGURATION),
        (answered(404, {"Authorization": "Bearer good"}), "ModelNotFound", ExitCode.CONFIGURATION),
        (ConnectionError("no route"), "ModelHubUnreachable", ExitCode.RESTART),
        (OSError(28, "No space left on device"), "DiskFull", ExitCode.RESTART),
    ],
)
def test_hub_failures(tmp_path, hub, error, reason, exit_code):
    hub({}, error)
    with pytest.raises(FatalError) as found:
        fetch(f"hf://o/m@{COMMIT}", tmp_path / "base", InMemoryStore, lambda _: None)
    assert (found.value.problem.reason, found.value.exit_code) == (reason, exit_code)


def test_a_hub_repository_without_safetensors(tmp_path, hub):
    hub({"config.json": b"{}"})
    with pytest.raises(FatalError, match="no safetensors"):
        fetch(f"hf://o/m@{COMMIT}", tmp_path / "base", InMemoryStore, lambda _: None)


def test_the_real_hub_library_has_the_call_we_make():
    from inspect import signature

    from huggingface_hub import snapshot_download

    parameters = signature(snapshot_download).parameters
    assert {"repo_id", "revision", "local_dir", "allow_patterns"} <= set(parameters)
