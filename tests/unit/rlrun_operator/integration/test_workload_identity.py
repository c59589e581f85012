"""Credentials of a workload identity in place of the platform's Secret, against a real S3 server."""

from pathlib import Path

import pytest
from rlrun.storage.layout import RunLayout
from rlrun.storage.manifest import ArtifactKind
from rlrun_operator.config.settings import OperatorSettings
from rlrun_operator.storage.artifact_store import ArtifactStore

from tests.support.cluster_objects import model_object, run_object
from tests.support.fake_cluster import FakeCluster
from tests.support.operator_world import SETTINGS, World
from tests.support.pod_identity import PodIdentity, pod_identity
from tests.support.seaweedfs import S3Server


def settings_of(s3: S3Server) -> OperatorSettings:
    """Settings without a Secret."""
    place = SETTINGS.s3.model_copy(update={"credentials_secret": None, "endpoint": s3.endpoint, "bucket": s3.bucket})
    return SETTINGS.model_copy(update={"s3": place})


@pytest.fixture
def identity_of_no_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def use(identity: PodIdentity, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in identity.variables.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("identity_of_no_pod")
async def test_a_run_starts_and_its_artifacts_are_found_without_a_secret(
    s3_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pod_identity(s3_server.environment, tmp_path) as identity:
        use(identity, monkeypatch)
        artifacts = ArtifactStore(2, lambda: True)
        world = World(FakeCluster(model_object(), run_object()), artifacts=artifacts, settings=settings_of(s3_server))
        await world.start()
        assert world.condition("Validated")["status"] == "True"
        layout = RunLayout.of(s3_server.bucket, "", "team", world.run["metadata"]["uid"])
        s3_server.store().upload_artifact({"w": b"1"}, layout.checkpoint(5), ArtifactKind.checkpoint, step=5)
        await world.reconcile(3)
        found = world.cluster.all("RLCheckpoint")
        assert [o["spec"]["step"] for o in found] == [5]
        assert identity.asked
        artifacts.close()


@pytest.mark.usefixtures("identity_of_no_pod")
async def test_an_identity_without_credentials_is_a_condition(s3_server: S3Server) -> None:
    artifacts = ArtifactStore(2, lambda: True)
    world = World(FakeCluster(model_object(), run_object()), artifacts=artifacts, settings=settings_of(s3_server))
    await world.reconcile(2)
    found = world.condition("Validated")
    assert (found["status"], found["reason"]) == ("False", "S3AccessDenied")
    artifacts.close()
