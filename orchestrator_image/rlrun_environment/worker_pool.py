"""Pool that starts, supervises and restarts worker processes, and sends each group to the least loaded one.

User code may block its event loop, exhaust its memory or exit its process. A worker that does not respond within a
group's deadline and a grace period is killed. A worker that exits is restarted after a pause that grows with every
failure. The groups that it was running return failed rollouts, so that the run can count them and continue.
"""

import asyncio
import contextlib
import logging
import math
import os
import signal
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from rlrun.api.base.received import InputInvalid, limits_of, parse
from rlrun.constants import Reason
from rlrun.protocol.access import TOKEN_VARIABLE
from rlrun.protocol.environment import (
    MAX_RESPONSE_BYTES,
    VARIABLE,
    Demonstration,
    DemonstrationRequest,
    EnvironmentConfig,
    EnvironmentInfo,
    GroupRequest,
    GroupResult,
    RolloutResult,
    failed_rollouts,
    max_result_bytes,
    timed_out,
)
from rlrun.protocol.problem import Problem
from rlrun.service.backoff import Backoff
from rlrun.service.errors import ProblemError

from rlrun_environment.phases import WorkPhase, read_phase
from rlrun_environment.process_limit import ProcessLimit
from rlrun_environment.worker_output import WorkerLogPipe

log = logging.getLogger(__name__)

WORKER = "rlrun_environment.worker"
"""Module of the worker process. It is started but never imported, because only the worker may run user code."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
HEALTHY_SECONDS = 120.0
"""Time after becoming ready from which a worker counts as healthy. If it exits later, its restart pause is reset."""
POLL_SECONDS = 0.1
PREPARE_SECONDS = 180.0
"""Time limit for a worker that has loaded the environment to prepare and run an example."""
DEMONSTRATION_SECONDS = 10.0
"""Time limit for a worker to return a demonstration. A worker busy with user code may exceed it; callers retry."""
ENDING_SECONDS = 2.0
"""Time to wait for a worker's exit status after its connection broke."""
TEARDOWN_SECONDS = 5.0
"""Time for an environment to release external resources before its worker is killed."""
ANSWER = "The response of the environment's worker"
HUNG = Problem(
    reason=Reason.ENVIRONMENT_WORKER_DIED,
    message="it was killed because it did not stop at a group's deadline: it blocked its event loop or ignored the "
    "cancellation",
)


@dataclass(frozen=True)
class Interpreter:
    """Python interpreter of the workers."""

    python: str = sys.executable
    first_on_path: Path | None = None
    """Folder whose packages take precedence over those of the interpreter."""


@dataclass
class Worker:
    """State of one worker process."""

    index: int
    socket: Path
    process: asyncio.subprocess.Process | None = None
    session: aiohttp.ClientSession | None = None
    output: WorkerLogPipe | None = None
    ready: bool = False
    in_flight: int = 0
    """Number of rollouts in the worker's current groups."""
    restarts: int = 0
    exit_description: str = "it has not been started yet"
    killed: Problem | None = None
    """Reason why this server killed the worker, or None."""
    backoff: Backoff = field(default_factory=lambda: Backoff(FIRST_PAUSE, LONGEST_PAUSE))


class WorkerPool:
    """Worker processes of one environment.

    The package is installed in `folder`; `load_deadline` and `hang_grace` are in seconds. `process_limit` is the
    maximum number of processes and threads in the container, per worker.
    """

    def __init__(
        self,
        config: EnvironmentConfig,
        folder: Path,
        load_deadline: float,
        hang_grace: float,
        process_limit: int = 1024,
    ) -> None:
        self._socket_folder = tempfile.TemporaryDirectory(prefix="rlrun-workers-")
        self.workers = [Worker(i, Path(self._socket_folder.name) / f"{i}.sock") for i in range(config.workers)]
        self._config = config
        self._folder = folder
        self._version = config.version
        self._load_deadline = load_deadline
        self._hang_grace = hang_grace
        self._interpreter = Interpreter()
        self._process_limit = ProcessLimit(process_limit * config.workers)
        self._first_ready = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self.info: EnvironmentInfo | None = None
        """Description of the environment by the worker that loaded it most recently, or None before the first load."""
        self.problem: Problem | None = None
        """Reason why the environment did not load, or None once a worker has loaded it."""

    @property
    def ready(self) -> bool:
        """True if at least one worker accepts groups."""
        return any(worker.ready for worker in self.workers)

    def start(self, version: str | None, interpreter: Interpreter) -> None:
        """Start the first worker, and the other workers once it has loaded, so that a broken environment fails only
        once.

        `version` is the installed version, which the workers report.
        """
        self._version, self._interpreter = version, interpreter
        self._tasks = [asyncio.create_task(self._supervise(worker)) for worker in self.workers]
        if self._process_limit.applies:
            watching = self._process_limit.watch(self._worker_pids, self._record_excess)
            self._tasks.append(asyncio.create_task(watching))

    async def close(self) -> None:
        """Stop all workers. Their environments have `TEARDOWN_SECONDS` for teardown before they are killed."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*[self._end(worker) for worker in self.workers])
        self._socket_folder.cleanup()

    async def run(self, request: GroupRequest) -> GroupResult:
        """Run the group on a worker. If the worker exits, hangs or responds with too much data, the result consists of
        failed rollouts.

        Raises ProblemError if no worker is ready or the worker rejects the request, and InputInvalid if the worker's
        response is not a valid result.
        """
        worker = self._least_loaded()
        assert worker.session is not None
        started = time.monotonic()
        worker.in_flight += request.rollouts
        try:
            timeout = aiohttp.ClientTimeout(total=request.deadline_seconds + self._hang_grace)
            async with worker.session.post(
                "http://worker/groups", json=request.to_json_dict(), timeout=timeout
            ) as response:
                body = await _read(response, max_result_bytes(request.rollouts))
                if response.status == 200:
                    return await asyncio.to_thread(parse, GroupResult, body, ANSWER)
                raise ProblemError(response.status, _problem(body))
        except TimeoutError:
            rollouts = failed_rollouts(request, timed_out(request))
            self._kill(worker, HUNG)
        except _ResponseTooLarge as error:
            rollouts = failed_rollouts(request, error.problem)
            self._kill(worker, error.problem)
        except aiohttp.ClientError:
            rollouts = await self._died_under(worker, request)
        finally:
            worker.in_flight -= request.rollouts
        return GroupResult(group_id=request.group_id, rollouts=rollouts, seconds=time.monotonic() - started)

    async def demonstrate(self, request: DemonstrationRequest) -> Demonstration:
        """Return the reference answer to an example.

        Raises ProblemError if no worker is ready, or if the worker rejects the request, does not respond or responds
        with too much data. Raises InputInvalid if its response is not a valid demonstration.
        """
        worker = self._least_loaded()
        assert worker.session is not None
        timeout = aiohttp.ClientTimeout(total=DEMONSTRATION_SECONDS)
        try:
            async with worker.session.post(
                "http://worker/demonstrations", json=request.to_json_dict(), timeout=timeout
            ) as response:
                body = await _read(response, MAX_RESPONSE_BYTES)
        except _ResponseTooLarge as error:
            raise ProblemError(502, error.problem) from error
        except (TimeoutError, aiohttp.ClientError) as error:
            message = f"The environment's worker did not respond ({type(error).__name__}). Retry."
            raise ProblemError(503, Problem(reason=Reason.ENVIRONMENT_BUSY, message=message)) from error
        if response.status != 200:
            raise ProblemError(response.status, _problem(body))
        return parse(Demonstration, body, ANSWER)

    def _least_loaded(self) -> Worker:
        able = [worker for worker in self.workers if worker.ready and worker.session is not None]
        if not able:
            raise ProblemError(503, self.problem or self._all_dead())
        return min(able, key=lambda worker: worker.in_flight)

    # --- life of a worker -------------------------------------------------------------------------------------------

    async def _supervise(self, worker: Worker) -> None:
        if worker.index > 0:
            await self._first_ready.wait()
        while True:
            ready_since = math.inf
            try:
                await self._spawn(worker)
                await self._wait_until_loaded(worker)
                if worker.ready:
                    ready_since = time.monotonic()
                    assert worker.process is not None
                    worker.exit_description = _ending(await worker.process.wait(), worker.killed)
                    log.error("Worker %d of the environment exited: %s", worker.index, worker.exit_description)
            except Exception as error:
                worker.exit_description = f"it could not be started: {error}"
                log.exception("Could not start worker %d of the environment", worker.index)
            await self._end(worker)
            if time.monotonic() - ready_since > HEALTHY_SECONDS:
                worker.backoff.record_success()
            worker.backoff.record_failure(time.monotonic())
            log.info("Restarting worker %d in %.0f s", worker.index, worker.backoff.pause)
            await asyncio.sleep(worker.backoff.pause)
            worker.restarts += 1

    async def _spawn(self, worker: Worker) -> None:
        for left in (worker.socket, worker.socket.with_suffix(".phase")):
            left.unlink(missing_ok=True)
        worker.killed = None
        # Run an example only until the environment is ready, because each run costs as much as the setup of a rollout.
        options = ["--play"] if self.info is None else []
        worker.output = WorkerLogPipe(f"worker {worker.index} of the environment")
        descriptor = await worker.output.open()
        try:
            worker.process = await asyncio.create_subprocess_exec(
                self._interpreter.python,
                *("-m", WORKER, str(worker.socket), "--folder", str(self._folder), "--version", self._version or ""),
                *options,
                stdin=asyncio.subprocess.PIPE,
                stdout=descriptor,
                stderr=descriptor,
                env=_worker_variables(os.environ, self._config, self._interpreter),
                start_new_session=True,
            )
        finally:
            os.close(descriptor)
        worker.session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(worker.socket), limit=0))

    async def _wait_until_loaded(self, worker: Worker) -> None:
        assert worker.process is not None
        assert worker.session is not None
        phase, ends = WorkPhase.load, time.monotonic() + self._load_deadline
        while time.monotonic() < ends:
            before, phase = phase, read_phase(worker.socket)
            if before is WorkPhase.load and phase is not WorkPhase.load:
                ends = time.monotonic() + PREPARE_SECONDS
            if worker.process.returncode is not None:
                worker.exit_description = _ending(worker.process.returncode, worker.killed)
                self._not_loaded(
                    Problem(
                        reason=worker.killed.reason if worker.killed else Reason.ENVIRONMENT_LOAD_FAILED,
                        message=f"The worker exited during the phase {phase}: {worker.exit_description}.",
                    )
                )
                return
            if worker.socket.exists():
                # User code may block the worker's event loop. A timeout of 0 would disable the limit.
                timeout = aiohttp.ClientTimeout(total=max(ends - time.monotonic(), POLL_SECONDS))
                try:
                    async with worker.session.get("http://worker/info", timeout=timeout) as response:
                        info = parse(EnvironmentInfo, await _read(response, limits_of(EnvironmentInfo).size), ANSWER)
                except (TimeoutError, aiohttp.ClientError):
                    await asyncio.sleep(POLL_SECONDS)
                    continue
                if info.ready:
                    self.info, self.problem, worker.ready = info, None, True
                    self._first_ready.set()
                elif info.problem is not None:
                    worker.exit_description = info.problem.message
                    self._not_loaded(info.problem)
                return
            await asyncio.sleep(POLL_SECONDS)
        message = (
            f"load_environment did not finish within {self._load_deadline:g} s. Make its datasets smaller, or look for "
            "calls that hang."
        )
        if phase is not WorkPhase.load:
            message = (
                f"The environment loads, but it did not respond within {PREPARE_SECONDS:g} s in the phase {phase} of "
                "example 0. Look for calls that block its event loop."
            )
        worker.exit_description = message
        self._not_loaded(Problem(reason=Reason.ENVIRONMENT_LOAD_FAILED, message=message))

    def _not_loaded(self, problem: Problem) -> None:
        if not self.ready and self.info is None:
            self.problem = problem

    async def _end(self, worker: Worker) -> None:
        worker.ready = False
        if worker.process is not None:
            if worker.process.returncode is None:
                worker.process.terminate()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(worker.process.wait(), TEARDOWN_SECONDS)
            # Kill the whole session, because user code may have started its own processes.
            _kill_group(worker.process.pid)
            await worker.process.wait()
            worker.process = None
        if worker.session is not None:
            await worker.session.close()
            worker.session = None
        if worker.output is not None:
            await worker.output.close()
            worker.output = None

    # --- groups without a response from the worker --------------------------------------------------------------------

    def _kill(self, worker: Worker, problem: Problem) -> None:
        if worker.ready and worker.process is not None:
            log.error("Killing worker %d: %s", worker.index, problem.message)
            worker.ready, worker.killed = False, problem
            _kill_group(worker.process.pid)

    def _worker_pids(self) -> set[int]:
        return {worker.process.pid for worker in self.workers if worker.process is not None}

    def _record_excess(self, count: int) -> None:
        message = (
            f"it was killed because its pod had {count:,} processes and threads, more than the "
            f"limit of {self._process_limit.limit:,}"
        )
        for worker in self.workers:
            worker.ready, worker.killed = False, Problem(reason=Reason.ENVIRONMENT_TOO_MANY_PROCESSES, message=message)

    async def _died_under(self, worker: Worker, request: GroupRequest) -> list[RolloutResult]:
        worker.ready = False
        process, ending = worker.process, worker.exit_description
        if process is not None:
            try:
                # The exit status is known shortly after the connection breaks.
                ending = _ending(await asyncio.wait_for(process.wait(), ENDING_SECONDS), worker.killed)
            except TimeoutError:
                # The worker is alive in an unknown state, so restart it.
                ending = "it closed its connection and was killed"
                _kill_group(process.pid)
        message = f"The environment's worker exited during the group: {ending}. The worker is being restarted."
        reason = worker.killed.reason if worker.killed else Reason.ENVIRONMENT_WORKER_DIED
        return failed_rollouts(request, Problem(reason=reason, message=message))

    def _all_dead(self) -> Problem:
        endings = "; ".join(sorted({worker.exit_description for worker in self.workers}))
        return Problem(
            reason=Reason.ENVIRONMENT_WORKER_DIED, message=f"No worker of the environment is ready: {endings}"
        )


class _ResponseTooLarge(Exception):
    """Error for a worker's response that exceeds its size limit. Workers run user code and are not trusted."""

    def __init__(self, limit: int) -> None:
        message = f"the environment's worker sent a response of more than {limit:,} bytes"
        self.problem = Problem(reason=Reason.ENVIRONMENT_WORKER_DIED, message=message)
        super().__init__(message)


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > limit:
            raise _ResponseTooLarge(limit)
    return bytes(body)


def _problem(body: bytes) -> Problem:
    """Return the problem in a worker's response, or a problem with reason `AnswerInvalid` if it cannot be parsed."""
    try:
        return parse(Problem, body, ANSWER)
    except InputInvalid as error:
        return Problem(reason=Reason.ANSWER_INVALID, message=str(error))


def _ending(code: int, killed: Problem | None) -> str:
    if killed is not None:
        return killed.message
    if code == -signal.SIGKILL:
        return "it was killed (SIGKILL), most likely because it ran out of memory; use a larger compute size"
    if code < 0:
        return f"it was terminated by {signal.Signals(-code).name}"
    return f"its process exited with code {code}"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _worker_variables(
    environ: Mapping[str, str], config: EnvironmentConfig, interpreter: Interpreter
) -> dict[str, str]:
    """Return the variables for a worker, without the pod's token, which user code must not have."""
    variables = {name: value for name, value in environ.items() if name != TOKEN_VARIABLE}
    if interpreter.first_on_path is not None:
        folders = [str(interpreter.first_on_path), *filter(None, [environ.get("PYTHONPATH")])]
        variables["PYTHONPATH"] = os.pathsep.join(folders)
    return {**variables, VARIABLE: config.to_variable()}
