"""How many objects of a run the operator lists: a trainer may write any number below its checkpoints."""

from collections.abc import Iterator

import pytest
from rlrun.storage.layout import RunLayout
from rlrun.storage.manifest import ArtifactKind
from rlrun_operator.storage import artifact_store
from rlrun_operator.storage.artifact_store import ArtifactStore, TooManyObjects

from tests.support.fake_s3 import FakeS3, store_on

LAYOUT = RunLayout.of("bucket", "", "team", "uid-1")
VARIABLES = {"AWS_ENDPOINT_URL_S3": "http://s3.test", "AWS_DEFAULT_REGION": "us-east-1"}
FILES = {f"{number}.safetensors": b"1" for number in range(9)}
"""Ten objects with their manifest."""


class Counted(FakeS3):
    """Pages of two objects, of which `entries` counts those sent."""

    entries = 0

    def list_objects_v2(self, **arguments: object) -> dict[str, object]:
        page = super().list_objects_v2(**{**arguments, "MaxKeys": 2})  # type: ignore[arg-type]
        self.entries += len(page.get("Contents", ()))
        return page


@pytest.fixture
def s3() -> Counted:
    s3 = Counted()
    for uri in (LAYOUT.checkpoint(1), LAYOUT.adapter(1)):
        store_on(s3).upload_artifact(FILES, uri, ArtifactKind.checkpoint, step=1)
    s3.entries = 0
    return s3


@pytest.fixture
def artifacts(s3: Counted, monkeypatch: pytest.MonkeyPatch) -> Iterator[ArtifactStore]:
    monkeypatch.setattr(artifact_store, "MAX_OBJECTS", 10)
    monkeypatch.setattr(artifact_store, "MAX_ARTIFACT_OBJECTS", 10)
    made = ArtifactStore(1, lambda: True)
    monkeypatch.setattr(made, "_store", lambda _: store_on(s3))
    yield made
    made.close()


async def test_artifacts_up_to_the_limit_are_listed(artifacts: ArtifactStore) -> None:
    found = await artifacts.list(VARIABLES, LAYOUT, {})
    assert [(one.kind, one.problem) for one in found] == [("RLCheckpoint", None), ("RLAdapter", None)]
    assert await artifacts.verify(VARIABLES, found[0].uri) == found[0].digest


@pytest.mark.parametrize("name", ["step-000001/more", "step-000002/manifest.json", "note.txt"])
async def test_a_listing_ends_at_the_limit_and_names_the_folder(
    artifacts: ArtifactStore, s3: Counted, name: str
) -> None:
    for number in range(100):
        s3.data[f"{LAYOUT.checkpoints.key}/{name}.{number}"] = b""
    with pytest.raises(TooManyObjects) as caught:
        await artifacts.list(VARIABLES, LAYOUT, {})
    assert caught.value.problem.reason == "S3TooManyObjects"
    assert caught.value.problem.message.startswith(f"{LAYOUT.checkpoints} contains more than 10 objects")
    assert s3.entries <= 12


async def test_the_check_of_an_artifact_ends_at_the_limit(artifacts: ArtifactStore, s3: Counted) -> None:
    place = LAYOUT.checkpoint(1)
    for number in range(100):
        s3.data[f"{place.key}/more-{number}"] = b""
    with pytest.raises(TooManyObjects, match=f"{place} contains more than 10 objects"):
        await artifacts.verify(VARIABLES, str(place))
    assert s3.entries <= 12
