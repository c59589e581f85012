"""The table of roles and folders."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rlrun.protocol.storage_access import StorageGrant, StorageRole
from rlrun_server.signing.permissions import FOLDERS, is_allowed, is_written_once
from rlrun_server.signing.s3_request import Operation, S3Request

RUN = "s3://bucket/prod/team/uid-1"
OTHER = "s3://bucket/prod/other/uid-0/checkpoints/step-000004"


def grant(role: StorageRole, *readable: str, folder: str = RUN) -> StorageGrant:
    return StorageGrant(namespace="team", owner="uid-1", role=role, folder=folder, readable=list(readable))


@pytest.mark.parametrize(
    ("role", "operation", "path", "allowed"),
    [
        ("trainer", "write", "checkpoints/step-000001/model.safetensors", True),
        ("trainer", "delete", "checkpoints/step-000001/manifest.json", False),
        ("trainer", "delete", "adapters/step-000001/manifest.json", False),
        ("trainer", "delete", "checkpoints/step-000001/model.safetensors", False),
        ("trainer", "delete", "policy/v000001-abc/manifest.json", True),
        ("trainer", "list", "policy/", True),
        ("trainer", "list", "recovery/", True),
        ("trainer", "read", "recovery/step-000001/manifest.json", True),
        ("trainer", "write", "recovery/step-000001/manifest.json", True),
        ("trainer", "delete", "recovery/step-000001/manifest.json", True),
        ("orchestrator", "read", "recovery/step-000001/manifest.json", False),
        ("orchestrator", "list", "recovery/", False),
        ("inference", "read", "recovery/step-000001/manifest.json", False),
        ("fetcher", "read", "recovery/step-000001/manifest.json", False),
        ("serving", "read", "recovery/step-000001/manifest.json", False),
        ("trainer", "write", "policy", False),
        ("trainer", "write", "metrics/part.jsonl", False),
        ("trainer", "read", "run.json", False),
        ("trainer", "write", "logs/attempt-1/a.log", False),
        ("orchestrator", "write", "metrics/part.jsonl", True),
        ("orchestrator", "write", "run.json", True),
        ("orchestrator", "write", "run.json/x", False),
        ("orchestrator", "read", "checkpoints/step-000001/manifest.json", True),
        ("orchestrator", "write", "checkpoints/step-000001/manifest.json", False),
        ("orchestrator", "delete", "metrics/part.jsonl", False),
        ("inference", "read", "policy/v000001-abc/manifest.json", True),
        ("inference", "write", "policy/v000001-abc/manifest.json", False),
        ("fetcher", "read", "policy/v000001-abc/manifest.json", False),
        ("serving", "read", "adapters/step-000001/manifest.json", False),
    ],
)
def test_each_role_has_its_folders(role: str, operation: str, path: str, allowed: bool) -> None:
    request = S3Request(Operation(operation), "bucket", f"prod/team/uid-1/{path}")
    assert is_allowed(grant(StorageRole(role)), request) is allowed


@pytest.mark.parametrize("name", ["model.safetensors", "state/rng.pt", "manifest.json"])
@pytest.mark.parametrize("role", list(StorageRole))
def test_nobody_replaces_a_file_of_an_artifact(role: StorageRole, name: str) -> None:
    for folder in ("checkpoints", "adapters"):
        key = f"prod/team/uid-1/{folder}/step-000001/{name}"
        assert not is_allowed(grant(role), S3Request(Operation.write, "bucket", key, may_replace=True))
        once = S3Request(Operation.write, "bucket", key)
        assert is_allowed(grant(role), once) is (role is StorageRole.trainer)
    for folder in ("policy/v000001-abc", "recovery/step-000001"):
        changed = S3Request(Operation.write, "bucket", f"prod/team/uid-1/{folder}/{name}", may_replace=True)
        assert is_allowed(grant(role), changed) is (role is StorageRole.trainer)


def test_only_the_trainer_replaces_the_names_of_saved_states() -> None:
    folder = "prod/team/uid-1/checkpoints"
    for role in StorageRole:
        replace = S3Request(Operation.write, "bucket", f"{folder}/saved-states.json", may_replace=True)
        assert is_allowed(grant(role), replace) is (role is StorageRole.trainer)
        assert not is_written_once(grant(role), replace)
    for other in ("other.json", "step-000001/saved-states.json"):
        replace = S3Request(Operation.write, "bucket", f"{folder}/{other}", may_replace=True)
        assert not is_allowed(grant(StorageRole.trainer), replace)
        assert is_written_once(grant(StorageRole.trainer), replace)


@pytest.mark.parametrize("role", list(StorageRole))
def test_readable_folders_are_read_and_not_written(role: StorageRole) -> None:
    granted = grant(role, OTHER)
    key = "prod/other/uid-0/checkpoints/step-000004"
    assert is_allowed(granted, S3Request(Operation.read, "bucket", f"{key}/manifest.json"))
    assert is_allowed(granted, S3Request(Operation.list, "bucket", f"{key}/"))
    for operation in (Operation.write, Operation.delete):
        assert not is_allowed(granted, S3Request(operation, "bucket", f"{key}/manifest.json"))
    assert not is_allowed(granted, S3Request(Operation.read, "bucket", f"{key}0/manifest.json"))
    assert not is_allowed(granted, S3Request(Operation.read, "other", f"{key}/manifest.json"))


def test_a_listable_folder_is_listed_and_nothing_in_it_is_read() -> None:
    granted = StorageGrant(
        namespace="team", owner="uid-1", role=StorageRole.orchestrator, listable=["s3://bucket/prod/environments/me"]
    )
    key = "prod/environments/me"
    assert is_allowed(granted, S3Request(Operation.list, "bucket", f"{key}/"))
    for operation, other in [
        (Operation.list, "prod/environments/"),
        (Operation.list, f"{key}0/"),
        (Operation.list, f"{key}/secret/"),
        (Operation.read, f"{key}/"),
        (Operation.read, f"{key}/secret/1.0/secret-1.0-py3-none-any.whl"),
        (Operation.write, f"{key}/"),
    ]:
        assert not is_allowed(granted, S3Request(operation, "bucket", other)), other
    assert not is_allowed(granted, S3Request(Operation.list, "other", f"{key}/"))


SEGMENT = st.sampled_from(
    ["prod", "team", "uid-1", "uid-10", "other", "policy", "recovery", "metrics", "checkpoints", "step-1", "x"]
)


@given(
    st.sampled_from(list(StorageRole)),
    st.sampled_from(list(Operation)),
    st.lists(SEGMENT, min_size=1, max_size=6),
    st.sampled_from(["", "/"]),
)
def test_no_request_outside_of_the_table_is_signed(
    role: StorageRole, operation: Operation, segments: list[str], end: str
) -> None:
    key = "/".join(segments) + end
    if not is_allowed(grant(role), S3Request(operation, "bucket", key)):
        return
    assert key.startswith("prod/team/uid-1/")
    folder = key.split("/")[3]
    assert folder == "run.json" or operation in FOLDERS[role][folder]


@pytest.mark.parametrize("folder", ["", "s3://bucket"])
def test_a_grant_without_a_folder_opens_none(folder: str) -> None:
    for operation in Operation:
        assert not is_allowed(grant(StorageRole.trainer, folder=folder), S3Request(operation, "bucket", "policy/a"))
        assert not is_allowed(grant(StorageRole.trainer, "s3://bucket"), S3Request(operation, "bucket", "a/b"))
