"""A session starts from the newest usable checkpoint, at a cost that does not grow with the number of checkpoints."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from rlrun.constants import ExitCode, Reason
from rlrun.protocol.policy import PolicyRef
from rlrun.protocol.problem import Problem
from rlrun.protocol.shared_pool import pool_trainer_name
from rlrun.protocol.trainer import SessionSpec, SessionState
from rlrun.service.errors import FatalError, RequestError, RequestRejected, ServiceUnavailable
from rlrun.storage.layout import MANIFEST, RunLayout, S3Uri
from rlrun.storage.manifest import ArtifactKind
from rlrun_orchestrator.data.schedule import RunSchedule
from rlrun_orchestrator.status.status_conditions import StatusConditions
from rlrun_orchestrator.training.trainer_session import TrainerSession, TrainerTimeouts

from tests.support.fake_s3 import InMemoryStore
from tests.support.run_processes import RUN_URI, World

LAYOUT = RunLayout(S3Uri.parse(RUN_URI))


def store_with(steps: Iterable[int], incomplete: Iterable[int] = ()) -> InMemoryStore:
    """A store with checkpoints of these steps. Those of `incomplete` lack a file."""
    store = InMemoryStore()
    for step in steps:
        store.publish(str(LAYOUT.checkpoint(step)), {"weights": b"w"}, ArtifactKind.checkpoint)
    for step in incomplete:
        del store.objects[str(LAYOUT.checkpoint(step) / "weights")]
    return store


class OpeningClient:
    """A trainer that refuses the checkpoints in `corrupt`, and records from which checkpoints it was to start."""

    def __init__(self, *corrupt: int) -> None:
        self.opened: list[str | None] = []
        self.limits: list[float] = []
        """Time limits of the requests."""
        self._corrupt = {str(LAYOUT.checkpoint(step)) for step in corrupt}

    async def open(self, spec: SessionSpec, timeout: float) -> SessionState:
        self.opened.append(spec.resume_from)
        self.limits.append(timeout)
        if spec.resume_from in self._corrupt:
            raise RequestRejected(Problem(reason=Reason.S3_ARTIFACT_CORRUPT, message="bad digest"), 422)
        return await self.state()

    async def state(self) -> SessionState:
        return SessionState(step=0, policy=PolicyRef(version=0, digest="0123456789abcdef", uri="s3://bucket/policy"))


def session(folder: Path, store: InMemoryStore, client: object, pool: str | None = None) -> TrainerSession:
    run = World(folder, environments={}, spec={"env": [{"id": "owner/words"}]}).resolved()
    if pool is not None:
        shared = {"pool": pool, "trainer_url": f"http://{pool_trainer_name(pool)}.team.svc:8080"}
        run = run.model_copy(update={"endpoints": run.endpoints.model_copy(update=shared)})
    timeouts, schedule = TrainerTimeouts(30.0, 20.0, 30.0, 30.0, 0.01), RunSchedule(2000)
    return TrainerSession(client, run, schedule, store, LAYOUT, StatusConditions(), timeouts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("incomplete", "corrupt", "expected", "most"),
    [
        pytest.param((), (), [1000], 3, id="newest"),
        pytest.param((999, 1000), (), [998], 7, id="incomplete"),
        pytest.param((), (1000,), [1000, 999], 5, id="refused by the trainer"),
    ],
)
async def test_only_checkpoints_that_may_be_used_are_checked(
    incomplete: tuple[int, ...],
    corrupt: tuple[int, ...],
    expected: list[int],
    most: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store, client = store_with(range(1, 1001), incomplete), OpeningClient(*corrupt)
    requests: list[str] = []
    monkeypatch.setattr(store.s3, "_check", lambda _, operation: requests.append(operation))
    await session(tmp_path, store, client).open()
    assert client.opened == [str(LAYOUT.checkpoint(step)) for step in expected]
    assert len(requests) <= most, "one list of all, then a manifest and a list of files for each that is checked"


async def test_a_run_without_a_usable_checkpoint_starts_from_the_base(tmp_path: Path) -> None:
    store, client = store_with([1, 2, 3], [2]), OpeningClient(3)
    store.objects[str(LAYOUT.checkpoint(1) / MANIFEST)] = b"not JSON"
    await session(tmp_path, store, client).open()
    assert client.opened == [str(LAYOUT.checkpoint(3)), None]


async def test_a_request_that_opens_the_session_ends_before_a_longer_deadline_for_the_trainer(tmp_path: Path) -> None:
    client = OpeningClient()
    opened = session(tmp_path, store_with([]), client)
    await opened.open()
    await opened.open(10.0)
    await opened.extend()
    assert client.limits == [20.0, 10.0, 20.0]


async def test_the_search_for_a_complete_checkpoint_has_a_deadline(tmp_path: Path) -> None:
    client, steps = OpeningClient(), range(1, 6)
    with pytest.raises(FatalError, match=r"Incomplete newest folders below s3:.*: 1\.") as ended:
        await session(tmp_path, store_with(steps, steps), client).open(-1.0)
    assert (ended.value.exit_code, ended.value.problem.reason) == (ExitCode.RESTART, Reason.CHECKPOINT_INCOMPLETE)
    assert client.opened == []


class RefusingClient:
    """A trainer that answers each request to open a session with the next error, and then with the session."""

    def __init__(self, *errors: RequestError) -> None:
        self.errors = list(errors)

    async def open(self, *_: object) -> SessionState:
        if self.errors:
            raise self.errors.pop(0)
        return SessionState(step=0, policy=PolicyRef(version=0, digest="0123456789abcdef", uri="s3://bucket/policy"))


async def test_a_run_whose_token_the_trainer_does_not_know_yet_waits(tmp_path: Path) -> None:
    unknown = ServiceUnavailable(Problem(reason=Reason.TOKEN_INVALID, message="not in the list"), 401)
    client = RefusingClient(unknown, unknown)
    assert (await session(tmp_path, store_with([]), client).open()).step == 0
    with pytest.raises(FatalError, match="not in the list") as ended:
        await session(tmp_path, store_with([]), RefusingClient(unknown, unknown)).open(-1.0)
    assert ended.value.exit_code == ExitCode.RESTART


@pytest.mark.parametrize(
    ("reason", "code"),
    [(Reason.POOL_EVICTED, ExitCode.RESTART), (Reason.SESSION_INVALID, ExitCode.CONFIGURATION)],
)
async def test_only_a_run_that_is_evicted_from_its_pool_starts_another_attempt(
    tmp_path: Path, reason: Reason, code: ExitCode
) -> None:
    client = RefusingClient(RequestRejected(Problem(reason=reason, message="no"), 422))
    with pytest.raises(FatalError) as ended:
        await session(tmp_path, store_with([]), client).open()
    assert (ended.value.problem.reason, ended.value.exit_code) == (reason, code)


async def test_a_run_of_a_pool_waits_for_memory_that_other_runs_use(tmp_path: Path) -> None:
    full = RequestRejected(Problem(reason=Reason.TRAINER_OUT_OF_MEMORY, message="no memory"), 507)
    pooled = session(tmp_path, store_with([]), RefusingClient(*[full] * 4), pool="rlpool-tiny-01234567")
    assert (await pooled.open()).step == 0
    with pytest.raises(FatalError, match="no memory") as ended:
        await session(tmp_path, store_with([]), RefusingClient(full, full), pool="rlpool-tiny-01234567").open(-1.0)
    assert ended.value.exit_code == ExitCode.RESTART
    with pytest.raises(FatalError, match="no memory") as ended:
        await session(tmp_path, store_with([]), RefusingClient(*[full] * 4)).open()
    assert ended.value.exit_code == ExitCode.CONFIGURATION


async def test_more_steps_for_a_session_that_knows_no_checkpoint_name_the_checkpoint_it_was_opened_with(
    tmp_path: Path,
) -> None:
    """Its trainer started from a newer recovery copy. Without the checkpoint, the next trainer could start again."""
    client = OpeningClient()
    opened = session(tmp_path, store_with([7]), client)
    await opened.open()
    await opened.extend()
    assert client.opened == [str(LAYOUT.checkpoint(7))] * 2
