"""The newest policies on disk, for sidecars that S3 does not answer."""

import pytest
from rlrun.protocol.policy import PolicyRef
from rlrun.storage.layout import S3Uri
from rlrun.storage.manifest import ArtifactKind, Manifest
from rlrun_trainer.artifacts import policy_cache, policy_publisher
from rlrun_trainer.artifacts.policy_cache import CachedPolicy, PolicyCache


def test_cache_keeps_the_newest_policy_and_those_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policy_cache, "KEPT_IN_MEMORY", 2)
    kept = PolicyCache()

    def policy(version: int) -> CachedPolicy:
        ref = PolicyRef(version=version, digest=f"{version:08d}", uri="s3://b/p")
        manifest = policy_publisher.build_manifest(
            {"a": b"x"},
            Manifest(kind=ArtifactKind.policy, files=[], created_at="2026-01-01T00:00:00Z"),  # type: ignore[arg-type]
        )
        return CachedPolicy(ref, S3Uri("b", "p"), manifest, {"a": b"%d" % version})

    policies = [policy(version) for version in range(5)]
    for one in policies:
        kept.put(one, busy=policies[0])
    assert [kept.file(one.ref.name, "a") for one in policies] == [b"0", None, None, b"3", b"4"]
    kept.put(policies[4])
    assert kept.file(policies[0].ref.name, "a") is None
