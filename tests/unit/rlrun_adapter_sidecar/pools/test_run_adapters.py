"""What one run of a pool may load."""

import asyncio
import hashlib
from collections.abc import Callable

import pytest
from rlrun.protocol.inference import LoadRequest
from rlrun.protocol.policy import PolicyKind, PolicyRef
from rlrun.protocol.shared_pool import PoolOrder, uid_of
from rlrun.storage.layout import ADAPTER_WEIGHTS, MANIFEST
from rlrun.storage.manifest import ArtifactKind
from rlrun.storage.store import Unreachable
from rlrun_adapter_sidecar.pools import run_adapters, run_files

from tests.support.fake_policy_server import manifest_of
from tests.support.waiting import until
from tests.unit.rlrun_adapter_sidecar.engine.test_adapter_probe import weights
from tests.unit.rlrun_adapter_sidecar.pools.conftest import ONE, TWO, Pool


@pytest.mark.parametrize(
    "uri",
    [
        f"{TWO.folder}/v000001-aaaaaaaa",
        "s3://bucket/run/policy/../policy2/v000001-aaaaaaaa",
        "s3://bucket/run/policy//v000001-aaaaaaaa",
        "s3://bucket/run/policy",
        "s3://bucket/run/policy/",
        "s3://bucket2/run/policy/v000001-aaaaaaaa",
        "s3://bucket/RUN/policy/v000001-aaaaaaaa",
    ],
)
async def test_files_outside_the_folder_of_the_run_are_refused(pool: Pool, uri: str) -> None:
    policy = pool.publish(ONE, 1).model_copy(update={"uri": uri})
    status, problem = await pool.put(ONE, policy)
    assert (status, problem["reason"]) == (403, "StorageAccessDenied")
    assert f"is not below {ONE.folder}" in problem["message"]
    assert (pool.store.reads, pool.engine.loads) == (0, 0)


async def test_a_clients_run_loads_its_adapters_too(pool: Pool) -> None:
    folder = "s3://bucket/run/adapters"
    digest = hashlib.sha256(b"weights").hexdigest()
    saved = PolicyRef(version=3, digest=digest[:8], uri=f"{folder}/step-000003")
    pool.store.publish(saved.uri, {ADAPTER_WEIGHTS: b"weights"}, ArtifactKind.adapter)
    assert (await pool.put(ONE, saved))[0] == 403
    await pool.runs.apply(PoolOrder(base="base", runs=[ONE.entry.model_copy(update={"adapters": folder}), TWO.entry]))
    assert (await pool.put(ONE, saved))[1]["adapters"] == [saved.name]
    assert (await pool.put(ONE, pool.publish(ONE, 1)))[0] == 200
    for caller, uri in ((TWO, saved.uri), (ONE, f"{folder}/../policy2/v000001-aaaaaaaa"), (ONE, folder)):
        status, problem = await pool.put(caller, saved.model_copy(update={"uri": uri}))
        assert (status, problem["reason"]) == (403, "StorageAccessDenied")


async def test_the_digits_in_the_name_suffice_to_load_and_are_verified(pool: Pool) -> None:
    policy = pool.publish(ONE, 1)
    short = policy.model_copy(update={"digest": policy.digest[:8]})
    for each in (short, policy, short):
        assert (await pool.put(ONE, each))[1]["adapters"] == [policy.name]
    assert pool.engine.loads == 1
    other = short.model_copy(update={"version": 2, "digest": "0" * 8})
    status, problem = await pool.put(ONE, other)
    assert (status, "do not match the digest" in problem["message"]) == (424, True)
    assert not (pool.folder / ONE.uid / other.name).exists()


async def test_a_uri_of_another_scheme_is_malformed(pool: Pool) -> None:
    status, problem = await pool.put(ONE, pool.publish(ONE, 1).model_copy(update={"uri": "file:///etc"}))
    assert (status, problem["reason"]) == (422, "InvalidRequest")


async def test_full_weights_are_refused(pool: Pool) -> None:
    policy = pool.publish(ONE, 1).model_copy(update={"kind": PolicyKind.weights})
    status, problem = await pool.put(ONE, policy)
    assert (status, problem["reason"]) == (422, "PolicyKindWrong")


async def test_the_trainer_gets_the_token_of_its_run_and_never_that_of_the_pool(pool: Pool) -> None:
    pool.store.fail = Unreachable("silent")
    policy = pool.trainer.publish(1, b"weights")
    assert (await pool.put(ONE, policy))[0] == 200
    assert pool.trainer.asked
    assert set(pool.trainer.authorizations) == {f"Bearer {ONE.token}"}
    assert (pool.folder / ONE.uid / policy.name / "adapter_model.safetensors").read_bytes() == b"weights"


@pytest.mark.parametrize(
    "change",
    [
        lambda url: url.replace("/sessions/u/", "/sessions/u-2/"),
        lambda url: f"{url}?file=",
        lambda url: f"{url}#",
        lambda url: f"{url}/..",
        lambda url: url.replace("http://", "http://user@"),
        lambda url: "http://169.254.169.254/latest/meta-data",
        lambda url: f"http:///{url.partition('//')[2].partition('/')[2]}",
    ],
)
async def test_a_fallback_requests_nothing_but_the_policy(pool: Pool, change: Callable[[str], str]) -> None:
    pool.store.fail = Unreachable("silent")
    policy = pool.trainer.publish(1, b"weights")
    assert policy.fallback is not None
    wrong = LoadRequest(**policy.model_dump() | {"fallback": change(policy.fallback)})
    status, problem = await pool.put(ONE, wrong)
    assert (status, problem["reason"]) == (422, "InvalidRequest")
    assert "is not the URL of this policy at a trainer" in problem["message"]
    assert pool.trainer.asked == []


async def test_a_trainer_that_sends_too_much_does_not_fill_the_disk(pool: Pool) -> None:
    pool.store.fail = Unreachable("silent")
    policy = pool.trainer.publish(1, b"weights")
    pool.trainer.endless = True
    async with asyncio.timeout(30):
        status, problem = await pool.put(ONE, policy)
    assert (status, problem["reason"]) == (503, "AdapterDownloadFailed")
    assert "does not match its manifest" in problem["message"]


async def test_policies_of_a_run_on_disk_are_bounded(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_adapters, "MAX_POLICIES", 2)
    first, second, third = (pool.publish(ONE, version, b"%d" % version) for version in (1, 2, 3))
    await pool.put(ONE, first)
    await pool.put(ONE, second)
    status, problem = await pool.put(ONE, third)
    assert (status, problem["reason"]) == (409, "AdapterDownloadFailed")
    assert "2 policies on this engine, which is the maximum" in problem["message"]
    assert (await pool.put(ONE, second))[0] == 200, "a policy that is there already"
    assert (await pool.put(TWO, pool.publish(TWO, 3)))[0] == 200, "the bound is that of one run"
    # The engine may read the files of an unloaded policy again, so that they do not make way.
    await pool.call(ONE.token, "DELETE", f"/adapters/{first.name}")
    assert (await pool.put(ONE, third))[0] == 409
    assert (pool.folder / ONE.uid / first.name).exists()


async def test_files_that_no_unload_deletes_make_way_after_the_grace(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_adapters, "MAX_POLICIES", 2)
    first, second, third = (pool.publish(ONE, version, b"%d" % version) for version in (1, 2, 3))
    pool.engine.refuse = (400, "rank too high")
    await pool.put(ONE, first)
    pool.engine.refuse = None
    await pool.put(ONE, second)
    adapters = pool.runs.find(f"Bearer {ONE.token}")
    assert adapters is not None
    monkeypatch.setattr(adapters, "_unload_grace", 0.0)
    assert (await pool.put(ONE, third))[0] == 409
    await until(lambda: not (pool.folder / ONE.uid / first.name).exists())
    assert (await pool.put(ONE, third))[0] == 200
    assert await pool.names(ONE) == [second.name, third.name]


@pytest.mark.parametrize("source", ["S3", "S3 with a fallback", "trainer"])
@pytest.mark.parametrize(
    ("size", "status", "advice"),
    [(17, 422, "at most 16 GiB: reduce the rank"), (15, 409, "the maximum is 20 GiB; wait until")],
)
async def test_a_policy_that_is_too_large_is_refused_before_its_first_byte(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, source: str, size: int, status: int, advice: str
) -> None:
    monkeypatch.setattr(run_files, "MAX_RUN_BYTES", 20 * run_files.GIB)
    monkeypatch.setattr(run_files, "_size_of", lambda _: 6 * run_files.GIB)
    assert (await pool.put(ONE, pool.publish(ONE, 1)))[0] == 200
    downloads, asked = pool.store.started, len(pool.trainer.asked)
    policy = pool.publish(ONE, 2, b"2") if source != "trainer" else pool.trainer.publish(2, b"2")
    entry = manifest_of(b"2").files[0].model_copy(update={"size": size * run_files.GIB})
    manifest = pool.trainer.manifest = manifest_of(b"2").model_copy(update={"files": [entry]})
    found = None if source == "trainer" else manifest
    monkeypatch.setattr(pool.store, "read_manifest", lambda *_: found)
    wanted = pool.trainer.load_of(policy) if source == "S3 with a fallback" else policy
    answer, problem = await pool.put(ONE, wanted)
    assert (answer, problem["reason"]) == (status, "AdapterDownloadFailed")
    assert advice in problem["message"]
    assert pool.store.started == downloads
    assert pool.trainer.asked[asked:] == ([MANIFEST] if source == "trainer" else [])


async def test_downloads_in_progress_count_by_their_size(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "MAX_RUN_BYTES", 10)
    policies = [pool.publish(ONE, version, b"%d" % version * 6) for version in (1, 2)]
    answers = await asyncio.gather(*[pool.put(ONE, policy) for policy in policies])
    assert sorted(status for status, _ in answers) == [200, 409]
    assert (await pool.put(TWO, pool.publish(TWO, 1, b"123456")))[0] == 200, "the bound is that of one run"


async def test_the_probes_of_two_runs_do_not_overlap(pool: Pool) -> None:
    await asyncio.gather(*[pool.put(caller, pool.publish(caller, 1, weights())) for caller in (ONE, TWO)])
    probed = [uid_of(name) for name in pool.engine.probed]
    assert probed in ([ONE.uid] * 3 + [TWO.uid] * 3, [TWO.uid] * 3 + [ONE.uid] * 3)


async def test_concurrent_loads_count(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_adapters, "MAX_POLICIES", 2)
    policies = [pool.publish(ONE, version, b"%d" % version) for version in range(5)]
    answers = await asyncio.gather(*[pool.put(ONE, policy) for policy in policies])
    assert sorted(status for status, _ in answers) == [200, 200, 409, 409, 409]
    assert len(list((pool.folder / ONE.uid).iterdir())) == 2
