"""`python -m rlrun_cli.inputs.baseline_process`: runs rollouts of an environment against an OpenAI-compatible endpoint.

The environment's code runs only in this process, which reads the request from standard input and writes the results
as lines of JSON to the file named in the request.
"""

import asyncio
import copy
import importlib
import inspect
import json
import math
import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

NO_KEY = "none"
"""API key used for endpoints that need none, because OpenAI's client requires a key."""
KEY_VARIABLE = "RLRUN_BASELINE_KEY"
ERROR_WIDTH = 500
RETRIES = 2


@dataclass(frozen=True)
class BaselineRequest:
    """Environment, examples and model to evaluate."""

    folder: str
    """Folder with the unpacked packages."""
    module: str
    results: str
    """File for the results."""
    base_url: str
    model: str
    args: dict[str, Any] = field(default_factory=dict)
    """Arguments for `load_environment`."""
    sampling: dict[str, Any] = field(default_factory=dict)
    examples: int = 10
    rollouts: int = 8
    """Number of rollouts per example."""
    concurrency: int = 64
    """Maximum number of concurrent rollouts. `run` exceeds it if a single example has more rollouts."""
    seconds: float = 600.0
    """Time limit in seconds for one request to the endpoint."""
    samples: str = ""
    """Folder for the samples in verifiers' file format. If empty, samples are discarded."""


Write = Callable[[dict[str, Any]], None]
"""Function that saves one line of the results."""


def load(request: BaselineRequest) -> Any:
    """Import the module and return its environment. Propagates exceptions from the environment's code."""
    # Append to the path, so that a user's package cannot replace a library of this process.
    sys.path.append(request.folder)
    return importlib.import_module(request.module).load_environment(**request.args)


async def run(environment: Any, request: BaselineRequest, write: Write) -> None:
    """Run all rollouts and write their results: one group at a time, or all at the end if samples are saved.

    Raises TypeError for an unsupported environment. An exception in a group becomes the result of its rollouts.
    """
    # A rollout that waits for a thread would count the wait as its own time.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max(request.concurrency, request.rollouts)))
    is_verifiers = "verifiers" in sys.modules and isinstance(environment, sys.modules["verifiers"].Environment)
    if not is_verifiers and not callable(getattr(environment, "rollout", None)):
        raise TypeError(
            f"load_environment returned {type(environment).__name__}, which is neither a verifiers.Environment "
            "nor an object with the method rollout"
        )
    if request.samples and not is_verifiers:
        raise TypeError(
            "samples can be saved only for a verifiers.Environment; use rlrun env check for this environment"
        )
    if request.samples:
        environment.env_id = environment.env_id or request.module
        found = await environment.evaluate(
            **_endpoint(request),
            num_examples=request.examples,
            rollouts_per_example=request.rollouts,
            max_concurrent=request.concurrency,
            results_path=Path(request.samples),
            save_results=True,
        )
        for output in found["outputs"]:
            write(_of_output(output["example_id"], output))
        return
    run_group = _run_verifiers if is_verifiers else _run_plain
    free = asyncio.Semaphore(max(1, request.concurrency // request.rollouts))

    async def group(number: int, row: dict[str, Any]) -> None:
        async with free:
            began = time.monotonic()
            try:
                lines = await run_group(environment, number, row, request)
            except Exception as error:
                lines = [_line(number, error, time.monotonic() - began)] * request.rollouts
            for line in lines:
                write(line)

    rows = _examples(environment, request.examples, is_verifiers)
    await asyncio.gather(*(group(number, row) for number, row in enumerate(rows)))


def _examples(environment: Any, count: int, is_verifiers: bool) -> list[dict[str, Any]]:
    """Return up to `count` examples, spread evenly over the training dataset, or over the evaluation dataset if the
    environment has only that.
    """
    if is_verifiers:
        has_train = any(getattr(environment, name, None) is not None for name in ("dataset", "dataset_source"))
        rows: Any = environment.get_dataset() if has_train else environment.get_eval_dataset()
    else:
        rows = getattr(environment, "dataset", None) or getattr(environment, "eval_dataset", None) or []
    wanted = min(count, len(rows))
    return [dict(rows[number * len(rows) // wanted]) for number in range(wanted)]


def _endpoint(request: BaselineRequest) -> dict[str, Any]:
    """Return endpoint, model and sampling parameters as arguments for verifiers' functions."""
    from verifiers.types import ClientConfig

    client = ClientConfig(
        client_type="openai_chat_completions",
        api_key_var=KEY_VARIABLE,
        api_base_url=request.base_url,
        max_retries=RETRIES,
        timeout=request.seconds,
    )
    return {"client": client, "model": request.model, "sampling_args": dict(request.sampling)}


async def _run_verifiers(
    environment: Any, number: int, row: dict[str, Any], request: BaselineRequest
) -> list[dict[str, Any]]:
    # `environment.generate` would end all groups at the first exception of the environment's code.
    outputs = await environment.run_group([dict(row) for _ in range(request.rollouts)], **_endpoint(request))
    return [_of_output(number, output) for output in outputs]


def _of_output(group: int, output: Any) -> dict[str, Any]:
    spans = [output["timing"][phase] for phase in ("generation", "scoring")]
    error = output.get("error")
    if isinstance(error, dict):
        error = error.get("error_chain_repr") or error.get("error")
    return _line(group, output.get("reward"), sum(span["end"] - span["start"] for span in spans), str(error or ""))


async def _run_plain(
    environment: Any, number: int, row: dict[str, Any], request: BaselineRequest
) -> list[dict[str, Any]]:
    options = {"base_url": request.base_url, "api_key": os.environ.get(KEY_VARIABLE, NO_KEY), "model": request.model}

    async def one() -> tuple[Any, float]:
        began = time.monotonic()
        try:
            # Each rollout gets its own copy of the example, as in runs.
            call = partial(environment.rollout, copy.deepcopy(row), **options, sampling=dict(request.sampling))
            is_async = inspect.iscoroutinefunction(environment.rollout)
            returned = await (call() if is_async else asyncio.to_thread(call))
        except Exception as error:
            returned = error
        return returned, time.monotonic() - began

    results = await asyncio.gather(*(one() for _ in range(request.rollouts)))
    rewards = [value if isinstance(value, Exception | dict) else {"reward": value} for value, _ in results]
    sound = [value for value in rewards if isinstance(value, dict)]
    if sound and (score := getattr(environment, "score_group", None)):
        scores = score(dict(row), sound)
        if inspect.isawaitable(scores):
            scores = await scores
        if len(scores) != len(sound):
            raise ValueError(f"score_group returned {len(scores)} rewards for {len(sound)} rollouts")
        scored = iter(scores)
        rewards = [value if isinstance(value, Exception) else next(scored) for value in rewards]
    return [_line(number, reward, seconds) for reward, (_, seconds) in zip(rewards, results, strict=True)]


def _line(group: int, reward: Any, seconds: float, error: str = "") -> dict[str, Any]:
    """Return a rollout's result with the fields of BaselineRollout. `reward` may be an exception or a dictionary."""
    if isinstance(reward, dict):
        reward = reward.get("reward")
    if isinstance(reward, Exception):
        error = _text(reward)
    if not error:
        try:
            number = float(reward)
        except (TypeError, ValueError):
            number = math.nan
        if math.isfinite(number):
            return {"group": group, "reward": number, "seconds": seconds, "error": ""}
        error = f"the reward is {reward!r}, not a finite number"
    return {"group": group, "reward": None, "seconds": seconds, "error": error[:ERROR_WIDTH]}


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def main() -> int:
    """Run the request from standard input. Returns 1 if the environment cannot be loaded or run, otherwise 0."""
    request = BaselineRequest(**json.load(sys.stdin))
    os.environ.setdefault(KEY_VARIABLE, NO_KEY)
    with Path(request.results).open("w", encoding="utf-8") as target:

        def write(line: dict[str, Any]) -> None:
            target.write(json.dumps(line) + "\n")
            target.flush()

        try:
            # Load outside of the event loop, because environments may run their own loop while they load.
            environment = load(request)
            asyncio.run(run(environment, request, write))
        except BaseException as error:
            # Catch SystemExit too: modules raise it when a key or a file is missing.
            write({"problem": _text(error)[:ERROR_WIDTH]})
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
