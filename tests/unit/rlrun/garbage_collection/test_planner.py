"""What is garbage and, above all, what is not."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rlrun.api.run_sections.retention import ArtifactPolicy
from rlrun.garbage_collection.planner import (
    FOLDER,
    GarbageItem,
    GarbageReason,
    find_mass_deletion,
    find_unknown,
    plan_deletions,
)
from rlrun.garbage_collection.snapshot import (
    Artifact,
    Child,
    ClusterSnapshot,
    Run,
    RunFolder,
    Tombstone,
    folders,
    locate,
    locate_tombstone,
    parse_checkpoint_name,
)
from rlrun.garbage_collection.tombstones import RunTombstone, artifact_tombstone, run_tombstone
from rlrun.kube.objects import artifact_name
from rlrun.storage.layout import S3Uri
from rlrun.storage.store import StoredObject, Upload

NOW = datetime(2026, 11, 21, 12, tzinfo=UTC)
DAY = timedelta(days=1)
OLD = NOW - 2 * DAY
ROOT = S3Uri("bucket", "prefix")
UIDS = [f"{n:08x}-0000-4000-8000-000000000000" for n in range(1, 4)]
GONE, DONE, LIVE = UIDS
RUNS = {DONE: Run(DONE, True), LIVE: Run(LIVE, False)}


def key(path: str, uid: str = GONE, namespace: str = "team") -> str:
    return f"prefix/{namespace}/{uid}/{path}"


def stored(*paths: str, uid: str = GONE, at: datetime = OLD, size: int = 10) -> list[StoredObject]:
    return [StoredObject(key(path, uid), size, at) for path in paths]


def artifact(step: int, uid: str = GONE, kind: str = "RLCheckpoint", deployed: bool = False) -> Artifact:
    folder = "checkpoints" if kind == "RLCheckpoint" else "adapters"
    uri = f"s3://bucket/{key(f'{folder}/step-{step:06d}', uid)}"
    return Artifact(kind, "team", f"first-{step}", uid, uri, OLD, deployed)


def deleted(uid: str = GONE, at: datetime = OLD, *, whole: bool = False, retained: tuple[str, ...] = ()) -> Tombstone:
    """The tombstone of a run, `whole` with artifactPolicy Delete."""
    policy = ArtifactPolicy.delete if whole else ArtifactPolicy.retain
    return Tombstone(RunFolder("team", uid), "", at, RunTombstone(artifact_policy=policy, retained=list(retained)))


def deleted_artifact(path: str, uid: str = GONE, at: datetime = OLD) -> Tombstone:
    return Tombstone(RunFolder("team", uid), path, at)


def world(
    *objects: StoredObject,
    artifacts: tuple[Artifact, ...] = (),
    uploads: tuple[Upload, ...] = (),
    children: tuple[Child, ...] = (),
    tombstones: tuple[Tombstone, ...] = (),
) -> ClusterSnapshot:
    stored_folders = tuple(folders(ROOT, objects))
    return ClusterSnapshot(ROOT, RUNS, stored_folders, uploads, artifacts, children, tombstones=tombstones)


def found(seen: ClusterSnapshot, older_than: timedelta = DAY) -> list[tuple[str, str]]:
    return names(plan_deletions(seen, NOW, older_than))


def unknown(seen: ClusterSnapshot, older_than: timedelta = DAY) -> list[tuple[str, str]]:
    return names(find_unknown(seen, NOW, older_than))


def names(items: list[GarbageItem]) -> list[tuple[str, str]]:
    return [(str(g.reason), g.name.removeprefix("s3://bucket/prefix/team/")) for g in items]


WHOLE = ("run.json", "metrics/part-1.jsonl", "checkpoints/step-000010/manifest.json", "checkpoints/step-000010/a")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (key("checkpoints/step-000040/manifest.json"), "checkpoints/step-000040"),
        (key("adapters/step-000040/deep/er"), "adapters/step-000040"),
        (key("policy/v000001-aa/x"), "policy/v000001-aa"),
        (key("recovery/step-000043/x"), "recovery/step-000043"),
        (key("run.json"), ""),
        (key("logs/attempt-1/p/c.log"), ""),
        (key("checkpoints/stray"), ""),
        ("prefix/environments/me/pkg/1.0/x.whl", None),
        (f"prefix/models/{GONE}/x/y", None),
        ("prefix/team/not-a-uid/x", None),
        (f"prefix/{GONE}/x", None),
        (f"prefix/deeper/team/{GONE}/x", None),
        (f"elsewhere/team/{GONE}/x", None),
        (f"prefixes/team/{GONE}/x", None),
    ],
)
def test_an_s3_key_is_located_by_run_and_folder(name: str, expected: str | None) -> None:
    assert locate(ROOT, name) == (None if expected is None else (RunFolder("team", GONE), expected))


STEP = "checkpoints/step-000010"


@pytest.mark.parametrize(
    "seen",
    [
        world(*stored(*WHOLE)),
        world(*stored(*WHOLE, "policy/v000001-aa/x", "adapters/step-000010/torn")),
        world(*stored(*WHOLE), uploads=(Upload(key("checkpoints/step-000020/a"), "u", OLD),)),
        world(*stored(*WHOLE), children=(Child("Job", "team", "left", GONE, OLD),)),
        world(artifacts=(artifact(10),)),
        world(*stored(*WHOLE), artifacts=(artifact(20),)),
        world(*stored(*WHOLE), tombstones=(deleted_artifact(STEP),)),
        world(*stored(*WHOLE), tombstones=(deleted(DONE, whole=True), deleted(LIVE, whole=True))),
        ClusterSnapshot(ROOT, {}, tuple(folders(ROOT, stored(*WHOLE, uid=LIVE)))),
    ],
)
def test_absence_from_the_cluster_deletes_nothing(seen: ClusterSnapshot) -> None:
    """After a restore, the cluster does not know newer runs, checkpoints and adapters; the bucket does."""
    items = [item for item in plan_deletions(seen, NOW, DAY) if item.kind != "Tombstone"]
    assert [item for item in items if item.run_uid in (GONE, LIVE)] == []


def test_what_the_cluster_does_not_know_is_reported() -> None:
    children = (Child("Job", "team", "left", GONE, OLD),)
    assert unknown(world(*stored(*WHOLE), children=children)) == [("RunUnknown", GONE), ("RunUnknown", "left")]
    assert unknown(world(artifacts=(artifact(10),))) == [("FilesUnknown", "first-10")]
    assert unknown(world(*stored(*WHOLE, at=NOW))) == [], "the list of runs may be older than its files"
    assert unknown(world(*stored(*WHOLE), tombstones=(deleted(),))) == [("ObjectUnknown", f"{GONE}/{STEP}")]


def test_a_run_that_was_deleted_with_its_artifacts_is_removed_as_a_whole() -> None:
    (item,) = plan_deletions(world(*stored(*WHOLE), tombstones=(deleted(whole=True),)), NOW, DAY)
    root = f"s3://bucket/prefix/team/{GONE}"
    assert item == GarbageItem(FOLDER, "team", root, GarbageReason.run_gone, OLD, 40, run_uid=GONE)


def test_a_run_whose_artifacts_were_deleted_one_by_one_is_removed_as_a_whole() -> None:
    files = stored(*WHOLE, "adapters/step-000020/manifest.json", "policy/v000001-aa/x")
    first, second = deleted_artifact(STEP), deleted_artifact("adapters/step-000020")
    assert found(world(*files, tombstones=(deleted(), first, second))) == [("RunGone", GONE)]
    assert found(world(*files, tombstones=(deleted(), first))) == [
        ("ObjectGone", f"{GONE}/{STEP}"),
        ("RunFinished", f"{GONE}/policy"),
    ]


def test_artifacts_in_use_survive_the_deletion_of_their_run_also_if_their_objects_are_lost() -> None:
    files = stored(*WHOLE, "adapters/step-000020/manifest.json")
    assert found(world(*files, tombstones=(deleted(whole=True, retained=(STEP,)),))) == [
        ("ObjectGone", f"{GONE}/adapters/step-000020")
    ]


def test_a_tombstone_counts_only_for_files_that_are_older() -> None:
    files = [*stored(*WHOLE), *stored(f"{STEP}/manifest.json", at=OLD + timedelta(hours=1))]
    assert found(world(*files, tombstones=(deleted(), deleted_artifact(STEP)))) == []


def test_a_tombstone_of_a_run_counts_only_for_files_that_are_older() -> None:
    """After a restore the run was back and made checkpoints, and then its object was lost, not deleted."""
    later = "checkpoints/step-000020/manifest.json"
    files = [*stored(*WHOLE), *stored(later, at=OLD + timedelta(hours=1))]
    assert found(world(*files, tombstones=(deleted(whole=True),))) == [("ObjectGone", f"{GONE}/{STEP}")]
    assert unknown(world(*files, tombstones=(deleted(whole=True),))) == [
        ("ObjectUnknown", f"{GONE}/checkpoints/step-000020")
    ]
    own = deleted_artifact("checkpoints/step-000020", at=OLD + timedelta(hours=2))
    assert found(world(*files, tombstones=(deleted(whole=True), own))) == [("RunGone", GONE)]


def test_an_item_is_as_young_as_its_tombstone() -> None:
    assert found(world(*stored(*WHOLE), tombstones=(deleted(at=NOW, whole=True),))) == []
    one = (deleted(), deleted_artifact(STEP, at=NOW))
    assert found(world(*stored(*WHOLE), tombstones=one)) == []


def test_a_run_that_is_back_after_a_restore_is_kept_in_spite_of_its_tombstone() -> None:
    for uid in (LIVE, DONE):
        seen = world(*stored(*WHOLE, uid=uid), tombstones=(deleted(uid, whole=True), deleted_artifact(STEP, uid)))
        folder = f"s3://bucket/prefix/rlrun.deleted/team/{uid}"
        tombstones = [("DeletionUndone", f"{folder}/run.json"), ("DeletionUndone", f"{folder}/{STEP}.json")]
        assert found(seen) == tombstones, "only the tombstones go"


def test_the_tombstone_of_a_run_whose_deletion_waits_is_kept() -> None:
    """A finalizer of another program may hold the run for days after the operator has written the tombstone."""
    seen = ClusterSnapshot(ROOT, {LIVE: Run(LIVE, False, deleting=True)}, tombstones=(deleted(LIVE),))
    assert found(seen) == []


def test_a_deleted_run_stays_with_its_artifacts() -> None:
    more = stored("checkpoints/step-000020/manifest.json", "policy/v000001-aa/manifest.json")
    seen = world(*stored(*WHOLE), *more, artifacts=(artifact(10),), tombstones=(deleted(whole=True),))
    assert found(seen) == [
        ("ObjectGone", f"{GONE}/checkpoints/step-000020"),
        ("RunFinished", f"{GONE}/policy"),
    ]


def test_object_protects_its_files_regardless_of_its_owner() -> None:
    other = Artifact("RLCheckpoint", "elsewhere", "copy", LIVE, artifact(10).uri, OLD)
    assert found(world(*stored(*WHOLE), artifacts=(other,), tombstones=(deleted(whole=True),))) == []


def test_a_checkpoint_that_a_run_starts_from_stays_without_an_object() -> None:
    name = artifact_name("first", GONE, 10)
    more = stored("checkpoints/step-000020/manifest.json")
    claiming = {LIVE: Run(LIVE, False, name), DONE: Run(DONE, True, artifact_name("first", GONE, 20))}
    files = tuple(folders(ROOT, [*stored(*WHOLE), *more]))
    seen = ClusterSnapshot(ROOT, claiming, files, tombstones=(deleted(whole=True),))
    assert found(seen) == [("ObjectGone", f"{GONE}/checkpoints/step-000020")], "the finished run needs nothing"
    assert parse_checkpoint_name(name) == (GONE[:8], "checkpoints/step-000010")
    assert parse_checkpoint_name("step-10") is None


def test_one_young_file_keeps_the_whole_run() -> None:
    gone = (deleted(whole=True),)
    assert found(world(*stored(*WHOLE), *stored("logs/x", at=NOW - DAY / 2), tombstones=gone)) == []
    begun = Upload(key("adapters/step-000010/a"), "u", NOW - DAY / 2)
    assert found(world(*stored(*WHOLE), uploads=(begun,), tombstones=gone)) == [], "somebody is writing"


@pytest.mark.parametrize(
    ("age", "older", "is_old"),
    [(DAY, timedelta(minutes=9), False), (DAY, timedelta(minutes=10), True), (timedelta(), timedelta(), True)],
)
def test_clocks_that_differ_make_no_item_old_enough(age: timedelta, older: timedelta, is_old: bool) -> None:
    """S3 writes the times of files by a clock of its own. An age of 0 asks for all items."""
    seen = world(uploads=(Upload(key("adapters/step-000010/a"), "u", NOW - age - older),), tombstones=(deleted(),))
    reasons = [item.reason.value for item in plan_deletions(seen, NOW, age)]
    assert ("RunFinished" in reasons or "UploadUnfinished" in reasons) is is_old


def test_a_run_that_lives_is_left_alone() -> None:
    paths = (*WHOLE, "adapters/step-000010/torn", "policy/v000001-aa/x")
    upload = Upload(key("checkpoints/step-000020/a", LIVE), "u", OLD)
    child = Child("Job", "team", "live-orchestrator-a1", LIVE, OLD)
    seen = world(*stored(*paths, uid=LIVE), uploads=(upload,), children=(child,), tombstones=(deleted(LIVE),))
    assert [reason for reason, _ in found(seen)] == ["DeletionUndone"], "its tombstone is of a time before a restore"


def test_only_unusable_objects_of_a_finished_run_are_removed() -> None:
    paths = (*WHOLE, "adapters/step-000010/torn", "policy/v000001-aa/x", "policy/v000002-bb/manifest.json")
    paths += ("recovery/step-000043/manifest.json", "recovery/step-000044/torn")
    upload = Upload(key("checkpoints/step-000020/a", DONE), "u", OLD)
    assert found(world(*stored(*paths, uid=DONE), uploads=(upload,))) == [
        ("UploadUnfinished", f"{DONE}/checkpoints/step-000020/a"),
        ("NoManifest", f"{DONE}/adapters/step-000010"),
        ("RunFinished", f"{DONE}/policy"),
        ("RunFinished", f"{DONE}/recovery"),
    ]


def test_an_object_goes_when_its_run_was_deleted_with_its_artifacts_and_its_files_are_gone() -> None:
    gone, torn, whole = artifact(20), artifact(30), artifact(10)
    deployed = artifact(40, kind="RLAdapter", deployed=True)
    files = [*stored(*WHOLE), *stored("checkpoints/step-000030/a")]
    other = Artifact("RLAdapter", "team", "elsewhere", GONE, "s3://another/x", OLD)
    unfinished = artifact(20, LIVE)
    objects = (gone, torn, whole, deployed, other, unfinished)
    assert found(world(*files, artifacts=objects, tombstones=(deleted(whole=True),))) == [
        ("FilesGone", "first-20"),
        ("FilesGone", "first-30"),
    ], "the files of step 30 stay for now: their object is still there"
    lost = [("FilesUnknown", "first-20"), ("FilesUnknown", "first-30")]
    assert unknown(world(*files, artifacts=objects, tombstones=(deleted(),))) == lost


@pytest.mark.parametrize(("created", "written"), [(OLD, NOW), (NOW, OLD)])
def test_an_object_is_as_young_as_the_newest_of_itself_and_its_files(created: datetime, written: datetime) -> None:
    torn = replace(artifact(30), created=created)
    files = stored("checkpoints/step-000030/a", at=written)
    gone = (deleted(whole=True),)
    assert found(world(*stored(*WHOLE), *files, artifacts=(artifact(10), torn), tombstones=gone)) == []


def test_children_of_deleted_runs_are_found_unless_young() -> None:
    children = (
        Child("Job", "team", "left", GONE, OLD),
        Child("Job", "team", "young", GONE, NOW),
        Child("Job", "team", "done", DONE, OLD),
    )
    assert found(world(children=children, tombstones=(deleted(),))) == [("RunGone", "left")]


def test_uploads_of_models_and_environments() -> None:
    upload = Upload("prefix/models/me/tiny/model.safetensors", "u", OLD)
    (item,) = plan_deletions(world(uploads=(upload,)), NOW, DAY)
    assert (item.kind, item.namespace, item.upload) == ("Upload", "", upload)


@pytest.mark.parametrize("name", ["backups/etcd", "prefix/backups/etcd", f"prefix/team/{GONE}/checkpoints/x"])
def test_uploads_of_others_in_the_bucket_are_left_alone(name: str) -> None:
    assert found(world(uploads=(Upload(name, "u", OLD),))) == []


def test_tombstones_go_when_nothing_is_left_of_their_run() -> None:
    both = (deleted(), deleted_artifact(STEP))
    folder = f"s3://bucket/prefix/rlrun.deleted/team/{GONE}"
    done = [("DeletionDone", f"{folder}/run.json"), ("DeletionDone", f"{folder}/{STEP}.json")]
    assert found(world(tombstones=both)) == done
    for left in (world(*stored("logs/x"), tombstones=(deleted(),)), world(artifacts=(artifact(10),), tombstones=both)):
        assert not any(reason == "DeletionDone" for reason, _ in found(left))
    assert found(world(tombstones=(deleted(LIVE, at=NOW), deleted(at=NOW)))) == []


def test_tombstones_are_located_by_what_was_deleted() -> None:
    def located(uri: S3Uri) -> Tombstone | None:
        return locate_tombstone(ROOT, StoredObject(uri.key, 2, OLD))

    artifact_uri = artifact_tombstone(ROOT, S3Uri("bucket", key(STEP)))
    assert located(run_tombstone(ROOT, "team", GONE)) == Tombstone(RunFolder("team", GONE), "", OLD)
    assert artifact_uri is not None
    assert located(artifact_uri) == deleted_artifact(STEP)
    assert located(S3Uri("bucket", key("run.json"))) is None
    assert located(ROOT / "rlrun.deleted" / "team" / GONE / "notes.json") is None
    for other in (S3Uri("others", key(STEP)), S3Uri("bucket", "prefix/team/x/checkpoints/step-000010")):
        assert artifact_tombstone(ROOT, other) is None


@pytest.mark.parametrize(("gone", "living", "stops"), [(3, 0, False), (4, 36, False), (4, 35, True), (30, 30, True)])
def test_a_sweep_stops_if_more_than_a_tenth_of_all_runs_would_lose_files(gone: int, living: int, stops: bool) -> None:
    run_ids = [f"{n:08x}-0000-4000-8000-000000000000" for n in range(gone + living)]
    files = [item for uid in run_ids for item in stored(*WHOLE, uid=uid)]
    runs = {uid: Run(uid, True, "", "team") for uid in run_ids[gone:]}
    records = tuple(deleted(uid, whole=True) for uid in run_ids[:gone])
    seen = ClusterSnapshot(ROOT, runs, tuple(folders(ROOT, files)), tombstones=records)
    items = plan_deletions(seen, NOW, DAY)
    assert len(items) == gone
    problem = find_mass_deletion(seen, items)
    assert (problem is not None) == stops
    if problem is not None:
        assert f"{gone} of {gone + living} runs" in problem
        assert "--allow-mass-deletion" in problem


# --- for any world -------------------------------------------------------------------------------------------------

times = st.integers(0, 72).map(lambda hours: NOW - timedelta(hours=hours))
uids = st.sampled_from(UIDS)
paths = st.sampled_from(
    [
        "run.json", "metrics/part-1.jsonl", "checkpoints/step-000010/manifest.json", "checkpoints/step-000010/a",
        "checkpoints/step-000020/a", "adapters/step-000010/manifest.json", "adapters/step-000020/x",
        "policy/v000001-aa/manifest.json", "policy/v000002-bb/x", "logs/attempt-1/p/c.log",
    ]
)  # fmt: skip
objects_in_s3 = st.builds(lambda p, u, t, n: StoredObject(key(p, u, n), 1, t), paths, uids, times, st.just("team"))
artifacts_in_cluster = st.builds(
    lambda step, uid, home, kind, deployed, created: Artifact(
        kind, "team", f"a-{step}-{uid[:8]}-{home}", uid, artifact(step, home or uid, kind).uri, created, deployed
    ),
    st.sampled_from([10, 20]), uids, st.one_of(st.none(), uids), st.sampled_from(["RLCheckpoint", "RLAdapter"]),
    st.booleans(), times,
)  # fmt: skip
claims = st.one_of(st.just(""), st.builds(lambda u, n: artifact_name("first", u, n), uids, st.sampled_from([10, 20])))
retained_paths = st.lists(st.sampled_from(["checkpoints/step-000010", "adapters/step-000010"]), max_size=1).map(tuple)
records = st.one_of(
    st.builds(lambda u, t, w, r: deleted(u, t, whole=w, retained=r), uids, times, st.booleans(), retained_paths),
    st.builds(deleted_artifact, st.sampled_from(["checkpoints/step-000010", "adapters/step-000010"]), uids, times),
)
worlds = st.builds(
    lambda objects, uploads, artifacts, children, runs, records: ClusterSnapshot(
        ROOT, runs, tuple(folders(ROOT, objects)), tuple(uploads), tuple(artifacts), tuple(children),
        tombstones=tuple(records),
    ),
    st.lists(objects_in_s3, max_size=20),
    st.lists(st.builds(lambda p, u, t: Upload(key(p, u), "u", t), paths, uids, times), max_size=4),
    st.lists(artifacts_in_cluster, max_size=6),
    st.lists(st.builds(lambda u, t: Child("Job", "team", f"c-{u[:8]}", u, t), uids, times), max_size=4),
    st.lists(st.builds(Run, uids, st.booleans(), claims), max_size=3).map(lambda runs: {r.uid: r for r in runs}),
    st.lists(records, max_size=5),
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(worlds, st.integers(0, 60))
def test_items_in_use_or_younger_than_the_age_are_never_deleted(seen: ClusterSnapshot, hours: int) -> None:
    limit = NOW - timedelta(hours=hours)
    buried = {t.run.uid: t for t in seen.tombstones if not t.path}
    for item in plan_deletions(seen, NOW, timedelta(hours=hours)):
        assert item.run_uid in seen.runs or item.run_uid in buried or item.kind == "Tombstone", "absence proves nothing"
        if item.kind == "Tombstone":
            needed = any(f.run.uid == item.run_uid for f in seen.folders) and item.run_uid not in seen.runs
            assert not needed, "the files need it"
        elif item.kind == FOLDER:
            inside = [f for f in seen.folders if within(folder_uri(f.run, f.path), item.name)]
            assert inside
            for folder in inside:
                assert folder.newest <= limit, "younger than the age"
                run = seen.runs.get(folder.run.uid)
                if run is None and folder.manifest and folder.area in ("checkpoints", "adapters"):
                    whole = buried[folder.run.uid]
                    signs = [t for t in seen.tombstones if (t.run, t.path) == (folder.run, folder.path)]
                    signs += [whole] if whole.content is not None and whole.content.deletes(folder.path) else []
                    assert any(t.written >= folder.newest for t in signs), "nobody deleted it"
                assert run is None or run.finished, "of a run that may still write"
                assert not any(
                    r.starts_from == artifact_name("first", folder.run.uid, int(folder.path[-6:]))
                    for r in seen.runs.values()
                    if not r.finished and folder.area == "checkpoints"
                ), "a run starts from it"
                if run:
                    assert folder.area == "policy" or (folder.area and not folder.manifest), "of a run that exists"
            assert not any(within(a.uri, item.name) or within(item.name, a.uri) for a in seen.artifacts), (
                "has an object"
            )
        elif item.kind == "Upload":
            assert item.upload is not None
            assert item.upload.initiated <= limit
            where = locate(ROOT, item.upload.key)
            assert where is None or where[0].uid not in seen.runs or seen.runs[where[0].uid].finished
        elif item.kind == "Job":
            owned = [c for c in seen.children if c.name == item.name and c.created <= limit]
            assert owned
            assert owned[0].run_uid not in seen.runs
        else:
            (gone, *_) = [a for a in seen.artifacts if (a.kind, a.name) == (item.kind, item.name) and not a.deployed]
            assert gone.run_uid not in seen.runs
            whole = {folder_uri(f.run, f.path) for f in seen.folders if f.manifest}
            assert gone.uri not in whole, "its files are there"


@settings(max_examples=200, deadline=None)
@given(worlds)
def test_deleted_folders_are_not_planned_again(seen: ClusterSnapshot) -> None:
    first = [g for g in plan_deletions(seen, NOW, timedelta(0)) if g.kind == FOLDER]
    left = ClusterSnapshot(
        ROOT,
        seen.runs,
        tuple(f for f in seen.folders if not any(within(folder_uri(f.run, f.path), g.name) for g in first)),
        seen.uploads,
        seen.artifacts,
    )
    again = {g.name for g in plan_deletions(left, NOW, timedelta(0)) if g.kind == FOLDER}
    assert not again & {g.name for g in first}


def folder_uri(run: RunFolder, path: str) -> str:
    return str(ROOT / run.namespace / run.uid / path)


def within(uri: str, folder: str) -> bool:
    return f"{uri}/".startswith(f"{folder}/")
