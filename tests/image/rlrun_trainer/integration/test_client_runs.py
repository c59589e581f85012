"""Models of clients' programs with the real model: sessions that end, and models that start from saved states."""

import hashlib
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest
from rlrun.protocol.client_command import Command
from rlrun.protocol.client_run import SaveKind
from rlrun.storage.layout import ADAPTER_WEIGHTS, RunLayout, S3Uri
from rlrun.storage.store import Store
from rlrun_trainer.model.base_model import BaseModel
from rlrun_trainer.runtime.compute_thread import Compute
from rlrun_trainer.runtime.settings import TrainerSettings
from rlrun_trainer.sessions.command_sequence import CommandSequence
from rlrun_trainer.sessions.received_command import ReceivedCommand
from rlrun_trainer.sessions.session_registry import Sessions
from rlrun_trainer.sessions.trained_runs import RunStorage
from rlrun_trainer.torch_backend.collective_executor import CollectiveExecutor

from tests.support import tiny_model
from tests.support.client_commands import body_of, read_result, save
from tests.support.client_datums import command, optim_step, random_datums


def training(steps: Iterable[int]) -> list[bytes]:
    """Commands of these steps: two batches, one that adds no gradient, and an update."""
    made = []
    for step in steps:
        for part, loss in enumerate(("cross_entropy", "importance_sampling", "ppo")):
            datums = random_datums(loss, 5, tiny_model.VOCABULARY, seed=10 * step + part)
            header, buffers = command(loss, datums, forward_only=part == 2)
            made.append(body_of(header, bytes(buffers)))
        update: Command = optim_step(learning_rate=0.02)
        made.append(body_of(update))
    return made


class Trainer:
    """Trainer of a pool, with the program of each run."""

    def __init__(self, base: BaseModel, store: Store, root: str) -> None:
        self.compute = Compute()
        self.backend = CollectiveExecutor(base)
        self.store, self.root = store, root
        self.sessions = Sessions(self.backend, self.compute, store, TrainerSettings(slots=2))

    def layout(self, uid: str) -> RunLayout:
        return RunLayout(S3Uri.parse(f"{self.root}/{uid}"))

    async def run(self, uid: str, bodies: list[bytes], ends: Iterable[int] = (), **changes: Any) -> bytes:
        """Run the commands, and return the adapter. The session ends after the commands with the numbers `ends`."""
        spec = tiny_model.spec(f"{self.root}/{uid}", uid, lora={"dropout": 0.1}, **changes)
        number = 0
        for end in (*ends, len(bodies)):
            session = await self.sessions.open_client(uid, spec, RunStorage(self.store, 2))
            assert session.step == number
            sequence = CommandSequence()
            sequence.start(session)
            for number in range(number + 1, end + 1):  # noqa: B020 (continues where the former session ended)
                sequence.receive(number, ReceivedCommand.read(bodies[number - 1]))
            for each in range(session.step + 1, end + 1):
                body = await sequence.result(each, 60)
                assert body is not None
                assert read_result(body)[0].error is None
            adapter = (await self.compute.run(uid, self.backend.policy_files, uid))[ADAPTER_WEIGHTS]  # type: ignore[index]
            await session.save_before_exit()
            sequence.close()
            await self.sessions.close(uid)
            assert await self.sessions.drain(60) == 0
        return bytes(adapter)


@pytest.fixture
async def trainer(base: BaseModel, store: Store, run_uri: str) -> AsyncIterator[Trainer]:
    made = Trainer(base, store, run_uri)
    yield made
    made.compute.close()


async def test_sessions_that_end_also_within_a_step_change_no_bit(trainer: Trainer) -> None:
    bodies = training(range(3))
    whole = await trainer.run("whole", bodies)
    assert await trainer.run("divided", bodies, ends=(1, 4, 6)) == whole


async def test_a_policy_is_the_adapter_that_is_saved_under_a_name_at_the_same_point(trainer: Trainer) -> None:
    first, second = training(range(1)), training(range(1, 2))
    policy, adapter = (save(name, SaveKind.sampler_weights) for name in (None, "a"))
    weights = await trainer.run("one", [*first, policy, adapter, *second, policy])
    layout, store = trainer.layout("one"), trainer.store
    before, after = (layout.policies / name for name in store.list_folders(layout.policies))
    saved = layout.adapter(len(first) + 2)
    assert [file_digests(store, place) for place in (before, saved)] == [file_digests(store, saved)] * 2
    digest = file_digests(store, saved)[ADAPTER_WEIGHTS]
    assert before == layout.policy(len(first) + 1, digest)
    assert store.get_bytes(after / ADAPTER_WEIGHTS) == weights
    assert hashlib.sha256(weights).hexdigest() != digest


def file_digests(store: Store, place: S3Uri) -> dict[str, str]:
    """Digests of an artifact's files."""
    manifest = store.read_manifest(place)
    assert manifest is not None
    return {file.name: file.sha256 for file in manifest.files}


async def test_a_saved_state_continues_to_the_bit_with_its_optimizer_and_not_without(trainer: Trainer) -> None:
    first, second = training(range(2)), training(range(2, 4))
    whole = await trainer.run("whole", [*first, save("half"), *second])
    source = str(trainer.layout("whole").checkpoint(len(first) + 1))
    again = await trainer.run("again", second, warm_start_from=source)
    assert again == whole
    fresh = await trainer.run("fresh", second, warm_start_from=source, warm_start_optimizer=False)
    assert fresh != whole
