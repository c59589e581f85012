"""What one run of a pool may load."""

import asyncio
from collections.abc import Callable

import pytest
from rlrun.protocol.inference import LoadRequest
from rlrun.protocol.policy import PolicyKind
from rlrun.storage.store import Unreachable
from rlrun_adapter_sidecar.pools import run_adapters

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
    assert (status, problem["reason"]) == (409, "AdapterLoadRejected")
    assert "2 policies on this engine, which is the maximum" in problem["message"]
    assert (await pool.put(ONE, second))[0] == 200, "a policy that is there already"
    assert (await pool.put(TWO, pool.publish(TWO, 3)))[0] == 200, "the bound is that of one run"
    # Files of an unloaded policy are kept for a minute, but make way.
    await pool.call(ONE.token, "DELETE", f"/adapters/{first.name}")
    assert (pool.folder / ONE.uid / first.name).exists()
    assert (await pool.put(ONE, third))[0] == 200
    assert sorted(path.name for path in (pool.folder / ONE.uid).iterdir()) == [second.name, third.name]


async def test_concurrent_loads_count(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_adapters, "MAX_POLICIES", 2)
    policies = [pool.publish(ONE, version, b"%d" % version) for version in range(5)]
    answers = await asyncio.gather(*[pool.put(ONE, policy) for policy in policies])
    assert sorted(status for status, _ in answers) == [200, 200, 409, 409, 409]
    assert len(list((pool.folder / ONE.uid).iterdir())) == 2
