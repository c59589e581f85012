"""Engines of the pools that runs sample from: discovers them, tracks the policies loaded in each, and chooses one for
each sample.

Nothing is stored. The id of a sampler identifies its policy, so a policy is loaded into each engine before the first
sample there, and again if the engine has lost it. Only the engines know which policies they have.
"""

import asyncio
import contextlib
import random
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

from rlrun.protocol.client_command import CommandPending, CommandState
from rlrun.protocol.client_run import ClientModel
from rlrun.protocol.inference import AdapterList
from rlrun.protocol.policy import NAME, POLICY_PREFIX, PolicyRef
from rlrun.service.backoff import Backoff

from rlrun_tinker.engine_client import (
    EngineAddress,
    EngineClient,
    EngineError,
    EngineFailed,
    EngineFull,
    EngineNotReady,
    PoliciesFull,
    PolicyNotLoaded,
    Resolve,
    SampleRefused,
    resolve_engines,
)
from rlrun_tinker.sample_requests import ValidatedSampleRequest
from rlrun_tinker.sample_response import EngineResponseInvalid, SampledSequence, read_sequence

MAX_TRIES = 4
"""Number of failures of one sample after which the client must send the request again."""
MAX_ERRORS = 10
"""Number of error responses to one sample after which it has failed. The pauses between them give an engine that fails
all requests time to exit.
"""
IN_ENGINES = 2048
"""Maximum number of a run's samples in engines, which divide their capacity fairly between runs. Further samples wait
in this process, in order of arrival.
"""
LOADED_POLICIES = 10
"""Maximum number of a run's policies in an engine: `RLRunSpec.policies_in_use` of a run with `driver: Client`."""
RESOLVE_SECONDS = 5.0
"""Seconds for which the addresses of a pool are cached."""
WATCH_SECONDS = 30.0
"""Seconds between two checks that the engine of a sample in progress is still among the pool's addresses."""
MISSES = 3
"""Number of consecutive checks without the engine's address after which the engine is considered lost."""
PAUSE = (0.1, 2.0)
"""First and longest pause in seconds before a retry at an engine that does not serve the run. Pauses double."""
BUSY_PAUSE = (0.5, 10.0)
"""First and longest pause in seconds before a retry at an engine with too many requests of the run. Pauses double."""
TRIALS = 16
"""Maximum number of a run's samples in progress in an engine that did not serve the last sample. If another engine is
healthy, the maximum is 1.
"""
FEW_BYTES = 64 * 1024
"""Size in bytes up to which reading a response takes less time than a handover to a thread."""
RUNS = 2000
"""Maximum number of runs whose engines are remembered."""

OpenModel = Callable[[bool], Awaitable[ClientModel | CommandPending]]
"""Function that returns the run, or the reason why the run has no pool now. Its argument is True if it must ask
rlrun-server again.
"""
Tell = Callable[[CommandPending], None]
ACTIVE = CommandPending(state=CommandState.active)


class SampleLost(Exception):
    """Raised after MAX_TRIES failures of a sample. The client must send its request again."""


class SampleFailed(Exception):
    """Raised after MAX_ERRORS error responses to a sample. The message is for the user."""


@dataclass(eq=False)
class SamplingEngine:
    """State of one engine for one run."""

    address: EngineAddress
    loaded: set[str] = field(default_factory=set)
    """Names of the loaded policies, according to the engine's latest responses."""
    loads: dict[str, "asyncio.Task[None]"] = field(default_factory=dict)
    uses: Counter[str] = field(default_factory=Counter)
    """Number of samples in progress by policy name, or by base model id."""
    busy: Backoff = field(default_factory=lambda: Backoff(*BUSY_PAUSE))
    unready: Backoff = field(default_factory=lambda: Backoff(*PAUSE))
    problem: str = ""
    """Latest reason why the engine could not be used. It is kept after a success."""

    @property
    def is_healthy(self) -> bool:
        """True if the engine served the last sample, or has not been used yet."""
        return self.unready.failures == 0

    def can_sample(self, now: float, trials: int) -> bool:
        """Return whether another sample may be sent to the engine. An unhealthy engine has at most `trials` samples in
        progress.
        """
        return self.busy.open(now) and self.unready.open(now) and (self.is_healthy or self.uses.total() < trials)


class RunEngines:
    """Engines of one run's pool."""

    def __init__(self, client: EngineClient, resolve: Resolve, reading: Executor) -> None:
        """`reading` is the thread pool that parses large responses."""
        self._client = client
        self._resolve = resolve
        self._reading = reading
        self._engines: dict[EngineAddress, SamplingEngine] = {}
        self._resolved = float("-inf")
        self._resolving = asyncio.Lock()
        self._turns = asyncio.Semaphore(IN_ENGINES)
        self.samples = 0
        """Number of samples in progress."""
        self.touched = float("-inf")
        """Time of the last heartbeat to the run's trainer."""

    async def sample(
        self, open_model: OpenModel, policy: PolicyRef | None, request: ValidatedSampleRequest, number: int, tell: Tell
    ) -> SampledSequence:
        """Return sample `number` of a request. While the sample waits, `tell` is called with the reason. Raises
        SampleLost, SampleFailed, SampleRefused.
        """
        self.samples += 1
        try:
            async with self._turns:
                return await self._sample(open_model, policy, request, number, tell)
        finally:
            self.samples -= 1

    async def _sample(
        self, open_model: OpenModel, policy: PolicyRef | None, request: ValidatedSampleRequest, number: int, tell: Tell
    ) -> SampledSequence:
        loop = asyncio.get_running_loop()
        failures, errors, waits, is_stale = 0, 0, Backoff(*PAUSE), False
        while failures < MAX_TRIES:
            model, is_stale = await open_model(is_stale), False
            pending = model if isinstance(model, CommandPending) else await self._discover(model)
            engine = None if pending else self._choose(loop.time())
            if isinstance(model, CommandPending) or engine is None:
                tell(pending or self._pending())
                waits.record_failure(loop.time())
                # Samples that wait together must not return together.
                await asyncio.sleep(waits.pause * random.uniform(0.75, 1.25))
                continue
            started = loop.time()
            try:
                found = await self._sample_from(engine, model, open_model, policy, request, number, tell)
            except EngineFull as error:
                engine.problem = "the engines accept no more samples of this run at the moment"
                engine.busy.record_failure(loop.time(), started)
                engine.busy.until = max(engine.busy.until, loop.time() + min(error.retry_after, BUSY_PAUSE[1]))
                continue
            except EngineNotReady as error:
                self._set_unready(engine, str(error), started)
                is_stale = True
                continue
            except PolicyNotLoaded as error:
                engine.loaded.discard("" if policy is None else policy.name)
                engine.problem = str(error)
            except (EngineError, EngineResponseInvalid) as error:
                self._set_unready(engine, str(error), started)
                errors += 1
                if errors >= MAX_ERRORS:
                    message = f"The engines failed {errors} times for this sample, the last time with: {error}"
                    raise SampleFailed(f"{message}. Ask the platform team for the engines' logs.") from None
                continue
            except EngineFailed as error:
                self._set_unready(engine, str(error), started)
            else:
                engine.busy.record_success()
                engine.unready.record_success()
                return found
            failures += 1
        raise SampleLost

    async def _sample_from(
        self,
        engine: SamplingEngine,
        model: ClientModel,
        open_model: OpenModel,
        policy: PolicyRef | None,
        request: ValidatedSampleRequest,
        number: int,
        tell: Tell,
    ) -> SampledSequence:
        name = model.base_model if policy is None else policy.name
        engine.uses[name] += 1
        try:
            if policy is not None and name not in engine.loaded:
                tell(CommandPending(state=CommandState.active, reason="an engine is loading the weights"))
                await self._load(engine, model, policy)
            tell(ACTIVE)
            found: list[SampledSequence] = []

            async def read(data: bytes) -> None:
                if len(data) <= FEW_BYTES:
                    found.append(read_sequence(data, request, number))
                else:
                    # Few threads, because a response takes ten times its size while it is read.
                    loop = asyncio.get_running_loop()
                    found.append(await loop.run_in_executor(self._reading, read_sequence, data, request, number))

            body = request.body(number, name)
            sending = asyncio.ensure_future(self._client.complete(engine.address, model, name, body, read))
            await self._watch(sending, engine, model, open_model)
            return found[0]
        finally:
            engine.uses[name] -= 1
            if not engine.uses[name]:
                del engine.uses[name]

    async def _watch(
        self, sending: "asyncio.Future[None]", engine: SamplingEngine, model: ClientModel, open_model: OpenModel
    ) -> None:
        """Wait for a request to an engine while sending heartbeats to the trainer. Raises the request's exception,
        EngineFailed if the engine leaves the pool (a lost node does not close its connections), and SampleRefused if
        the run ends.
        """
        misses = 0
        try:
            while not sending.done():
                await asyncio.wait({sending}, timeout=WATCH_SECONDS)
                if sending.done():
                    break
                await open_model(False)
                await self._discover(model)
                misses = 0 if engine.address in self._engines else misses + 1
                if misses >= MISSES:
                    raise EngineFailed("the engine has left the pool")
            sending.result()
        finally:
            sending.cancel()

    async def _load(self, engine: SamplingEngine, model: ClientModel, policy: PolicyRef) -> None:
        """Load a policy once for all samples that wait for it."""
        task = engine.loads.get(policy.name)
        if task is None:
            task = engine.loads[policy.name] = asyncio.create_task(self._load_once(engine, model, policy))
            task.add_done_callback(lambda _: engine.loads.pop(policy.name, None))
            # A failure is that of all waiting samples, which may all have been cancelled.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.shield(task)

    async def _load_once(self, engine: SamplingEngine, model: ClientModel, policy: PolicyRef) -> None:
        try:
            listed = await self._client.load(engine.address, model, policy)
        except PoliciesFull as error:
            # The files of the unloaded policies are deleted after a while.
            await self._unload(engine, model, policy.name, len(engine.loaded) // 2)
            raise EngineNotReady(str(error)) from None
        except SampleRefused as error:
            message = (
                f"The weights of this sampling client cannot be loaded: {str(error).rstrip('.')}. Weights saved "
                "without a name are kept for a short time only: create another sampling client, or save the weights "
                "with a name."
            )
            raise SampleRefused(message) from None
        engine.unready.record_success()
        engine.loaded = set(listed.adapters)
        await self._unload(engine, model, policy.name, LOADED_POLICIES)

    async def _unload(self, engine: SamplingEngine, model: ClientModel, newest: str, kept: int) -> None:
        """Unload the oldest policies while more than `kept` policies are loaded. Never unloads `newest` or a policy in
        use.
        """
        unused = sorted(
            (name for name in engine.loaded if NAME.fullmatch(name) and name != newest and not engine.uses[name]),
            key=_version,
        )
        for name in unused[: max(0, len(engine.loaded) - kept)]:
            engine.loaded.discard(name)
            with contextlib.suppress(EngineNotReady, EngineFailed, SampleRefused, PoliciesFull):
                self._record(engine, await self._client.unload(engine.address, model, name))

    @staticmethod
    def _record(engine: SamplingEngine, listed: AdapterList) -> None:
        engine.loaded &= set(listed.adapters)

    async def _discover(self, model: ClientModel) -> CommandPending | None:
        """Update the addresses of the engines in the run's pool. Returns the reason if there are none, else None."""
        loop = asyncio.get_running_loop()
        host = model.inference_host
        if host is None:
            return _paused("the run waits for its pool" if model.waiting is None else model.waiting.message)
        async with self._resolving:
            if loop.time() >= self._resolved + (RESOLVE_SECONDS if self._engines else PAUSE[0]):
                try:
                    found = await self._resolve(host)
                except OSError:
                    found = []
                self._engines = {each: self._engines.get(each) or SamplingEngine(each) for each in found}
                self._resolved = loop.time()
        return None if self._engines else _paused("the pool's engines are starting")

    def _choose(self, now: float) -> SamplingEngine | None:
        """Return the usable engine with the fewest samples in progress, or None if no engine can be used now."""
        engines = self._engines.values()
        trials = 1 if any(engine.is_healthy for engine in engines) else TRIALS
        able = [engine for engine in engines if engine.can_sample(now, trials)]
        return min(able, key=lambda engine: (engine.uses.total(), random.random()), default=None)

    def _pending(self) -> CommandPending:
        """Return why no engine can be used now."""
        engines = self._engines.values()
        reason = next((engine.problem for engine in engines if engine.problem), "")
        if any(engine.busy.failures and engine.busy.until >= engine.unready.until for engine in engines):
            return CommandPending(state=CommandState.paused_rate_limit, reason=reason)
        return _paused(reason)

    @staticmethod
    def _set_unready(engine: SamplingEngine, problem: str, started: float) -> None:
        engine.problem = problem
        engine.unready.record_failure(asyncio.get_running_loop().time(), started)


class EngineRegistry:
    """Engines of each run's pool."""

    def __init__(self, client: EngineClient | None = None, resolve: Resolve = resolve_engines) -> None:
        self._client = client or EngineClient()
        self._resolve = resolve
        self._reading = ThreadPoolExecutor(2, "reading")
        self._runs: OrderedDict[str, RunEngines] = OrderedDict()

    def of(self, uid: str) -> RunEngines:
        """Return the engines of a run."""
        found = self._runs.get(uid)
        if found is None:
            found = self._runs[uid] = RunEngines(self._client, self._resolve, self._reading)
        self._runs.move_to_end(uid)
        if len(self._runs) > RUNS:
            unused = (other for other, engines in self._runs.items() if not engines.samples and other != uid)
            self._runs.pop(next(unused, ""), None)
        return found

    async def close(self) -> None:
        """Close the connections, and stop the threads."""
        self._reading.shutdown(wait=False, cancel_futures=True)
        await self._client.close()


def _version(name: str) -> int:
    return int(name.removeprefix(POLICY_PREFIX).partition("-")[0])


def _paused(reason: str) -> CommandPending:
    return CommandPending(state=CommandState.paused_capacity, reason=reason[:1024] or None)
