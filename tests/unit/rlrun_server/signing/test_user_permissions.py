"""The table of what users need, with all keys that a request may have."""

import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlrun.storage.layout import S3Uri
from rlrun_server.authentication.users import Check
from rlrun_server.signing.s3_request import Operation, RequestNotAllowed, S3Request
from rlrun_server.signing.user_permissions import FOLDERS, required_check

ROOT = S3Uri("bucket", "a/b")
OWNERS = {"acme": ["team-a", "acme-*"], "nobody": []}
READS = (Operation.read, Operation.list)


def check(
    key: str, operation: Operation = Operation.read, *, namespace: str = "", once: bool = False, root: S3Uri = ROOT
) -> str:
    """Return the permission as text, `anybody`, or `-` if no user may do this."""
    try:
        found = required_check(S3Request(operation, "bucket", key), root, OWNERS, namespace, once=once)
    except RequestNotAllowed:
        return "-"
    return "anybody" if found is None else str(found)


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("a/b/team/uid/metrics/part-1.jsonl", "get rlruns/metrics in namespace team"),
        ("a/b/team/uid/metrics/", "get rlruns/metrics in namespace team"),
        ("a/b/team/uid/rollouts/step-1.jsonl.zst", "get rlruns/rollouts in namespace team"),
        ("a/b/team/uid/logs/attempt-1/pod/c.log", "get rlruns/log in namespace team"),
        ("a/b/team/uid/checkpoints/step-1/manifest.json", "get rlcheckpoints/files in namespace team"),
        ("a/b/team/uid/adapters/step-1/w", "get rladapters/files in namespace team"),
        ("a/b/team/uid/metrics", "-"),
        ("a/b/team/uid/policy/v1/w", "-"),
        ("a/b/team/uid/recovery/step-1/w", "-"),
        ("a/b/team/uid/run.json", "-"),
        ("a/b/team/uid/orchestrator/state.json", "-"),
        ("a/b/team/uid/", "-"),
        ("a/b/team/", "-"),
        ("a/b/", "-"),
        ("a/", "-"),
        ("a/bc/team/uid/metrics/x", "-"),
        ("a/bc/metrics/x", "-"),
        ("a/b/models/owner/name/w", "-"),
        ("a/b/models/uid/metrics/x", "-"),
        ("a/b/environments/me/env/", "anybody"),
        ("a/b/environments/me/env/1.0/x.whl", "anybody"),
        ("a/b/environments/me/", "-"),
        ("a/b/environments/", "-"),
    ],
)
def test_keys(key: str, expected: str) -> None:
    assert check(key) == expected


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize("operation", [Operation.write, Operation.delete])
def test_users_only_read_the_files_of_runs(folder: str, operation: Operation) -> None:
    for once in (True, False):
        assert check(f"a/b/team/uid/{folder}/x", operation, once=once) == "-"


def test_a_bucket_without_prefix() -> None:
    assert check("team/uid/metrics/x", root=S3Uri("bucket", "")) == "get rlruns/metrics in namespace team"
    assert check("metrics/x", root=S3Uri("bucket", "")) == "-"
    with pytest.raises(RequestNotAllowed):
        required_check(S3Request(Operation.read, "other", "a/b/team/uid/metrics/x"), ROOT, {}, "", once=False)


@pytest.mark.parametrize(
    ("owner", "namespace", "operation", "once", "expected"),
    [
        ("me", "", Operation.write, True, "create rlenvironments in namespace me"),
        ("me", "team-a", Operation.write, True, "create rlenvironments in namespace me"),
        ("me", "", Operation.write, False, "delete rlenvironments in namespace me"),
        ("me", "", Operation.delete, False, "delete rlenvironments in namespace me"),
        ("acme", "team-a", Operation.write, True, "create rlenvironments in namespace team-a"),
        ("acme", "acme-lab", Operation.write, True, "create rlenvironments in namespace acme-lab"),
        ("acme", "acme-lab", Operation.read, False, "get rlenvironments in namespace acme-lab"),
        ("acme", "acme", Operation.write, True, "-"),
        ("acme", "", Operation.read, False, "-"),
        ("nobody", "nobody", Operation.write, True, "-"),
    ],
)
def test_packages_belong_to_namespaces(
    owner: str, namespace: str, operation: Operation, once: bool, expected: str
) -> None:
    assert check(f"a/b/environments/{owner}/env/1.0/x.whl", operation, namespace=namespace, once=once) == expected


def test_files_of_a_package_are_in_a_version() -> None:
    for key in ("x.whl", "1.0/", "1.0/more/x.whl"):
        assert check(f"a/b/environments/me/env/{key}", Operation.write, once=True) == "-"
    assert check("a/b/environments/me/env/1.0/", Operation.delete) == "delete rlenvironments in namespace me"


@pytest.mark.parametrize("operation", Operation)
@pytest.mark.parametrize(
    ("key", "field"),
    [
        (".owner/1.0/x.whl", "name '.owner'"),
        (".Owner/1.0/x.whl", "name '.Owner'"),
        ("-env/1.0/x.whl", "name '-env'"),
        ("env/.1/x.whl", "version '.1'"),
        ("env/1.0/.owner", "file '.owner'"),
    ],
)
def test_names_of_the_platform_are_refused_by_their_field(key: str, field: str, operation: Operation) -> None:
    for owner in ("me", "acme"):
        request = S3Request(operation, "bucket", f"a/b/environments/{owner}/{key}")
        with pytest.raises(RequestNotAllowed, match=f"the {field} of an environment package must begin with a letter"):
            required_check(request, ROOT, OWNERS, "team-a", once=True)
    with pytest.raises(RequestNotAllowed, match=r"the owner '\.owner' of an environment package must begin"):
        required_check(S3Request(operation, "bucket", "a/b/environments/.owner/env/1.0/x"), ROOT, {}, "", once=True)


SEGMENT = st.sampled_from(
    [*FOLDERS, "environments", "models", "policy", "a", "b", "team", "me", "acme", "uid"]
) | st.text(string.ascii_lowercase + "-.", min_size=1, max_size=6)


HEAD = st.sampled_from([["a", "b"], ["a", "b"], ["a", "b", "environments"], ["a", "b", "team", "uid"], ["a", "bc"], []])


@settings(max_examples=500)
@given(HEAD, st.lists(SEGMENT, max_size=6), st.booleans(), st.sampled_from(list(Operation)), st.booleans(), SEGMENT)
def test_no_key_is_outside_of_the_table(
    head: list[str], rest: list[str], is_folder: bool, operation: Operation, once: bool, namespace: str
) -> None:
    segments = [*head, *rest]
    key = "/".join(segments) + ("/" if is_folder and segments else "")
    try:
        found = required_check(S3Request(operation, "bucket", key), ROOT, OWNERS, namespace, once=once)
    except RequestNotAllowed:
        return
    assert segments[:2] == ["a", "b"]
    place, *rest = segments[2:]
    if place == "environments":
        owner = rest[0]
        if found is None:
            assert operation in READS
            assert owner not in OWNERS
        else:
            assert found.resource == "rlenvironments"
            is_own = owner == found.namespace and owner not in OWNERS
            assert is_own or (owner == "acme" and (found.namespace == "team-a" or found.namespace.startswith("acme-")))
            assert found.verb != "get" or operation in READS
            assert found.verb != "create" or (operation is Operation.write and once)
        return
    assert place != "models"
    assert operation in READS
    resource, subresource = FOLDERS[rest[1]]
    assert found == Check("get", resource, place, subresource)
