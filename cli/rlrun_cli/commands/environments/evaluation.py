"""Command `env eval`: evaluates a model on an environment package and saves the samples."""

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from rlrun_cli.commands.environments.endpoint_options import (
    PANEL,
    Arguments,
    BaseUrl,
    Examples,
    KeyVariable,
    MaxTokens,
    Model,
    Temperature,
    Timeout,
    endpoint_key,
    for_wheel,
    read_request,
    show_remarks,
)
from rlrun_cli.inputs.baseline import summarize
from rlrun_cli.inputs.baseline_runner import run_baseline
from rlrun_cli.inputs.wheel_builder import build_wheel
from rlrun_cli.terminal import output as terminal
from rlrun_cli.terminal.errors import FAILED, INVALID, CliError

EVALUATE_ENVIRONMENT_EPILOG = """Examples:

  rlrun env eval . --base-url http://127.0.0.1:8000/v1 --model Qwen/Qwen3-0.6B
  rlrun env eval my-env --base-url https://rlrun.example.com/v1 --model NAME --key-variable RLRUN_API_KEY
  rlrun env eval my-env --base-url $URL --model NAME --examples 20 --rollouts 3 --output samples

Runs verifiers' evaluation on this machine with your rights, on the environment's evaluation dataset, or on its \
training dataset if it has none. Prints the rewards and the output folder, which contains verifiers' files: \
results.jsonl with one rollout per line (prompt, completion, reward, metrics, error), and metadata.json with the \
settings and means. Without --output the folder is outputs/evals/NAME--MODEL/ID, as for `vf-eval`. If the deadline \
passes, the rollouts finished by then are kept.

Requires verifiers and the environment's dependencies in this Python: rlrun env install.

Exit codes: 0 rollouts finished; 1 the environment cannot be run, or all rollouts failed; 2 invalid option."""


def evaluate_environment(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the environment's Python project.")],
    base_url: BaseUrl = None,
    model: Model = None,
    key_variable: KeyVariable = None,
    args: Arguments = "{}",
    examples: Examples = 10,
    rollouts: Annotated[int, typer.Option(min=1, max=256, help="Rollouts per example.", rich_help_panel=PANEL)] = 3,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 1.0,
    timeout: Timeout = 600,
    output: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Folder for the samples, which must be new or empty.")
    ] = None,
) -> None:
    """Evaluate a model on an environment package and save the samples."""
    request = read_request(base_url, model, args)
    if request is None:
        raise CliError("--base-url is missing", "pass the URL of an OpenAI-compatible endpoint", code=INVALID)
    wheel = build_wheel(folder)
    samples = output or Path(
        "outputs", "evals", f"{wheel.name}--{request.model.replace('/', '--')}", uuid.uuid4().hex[:8]
    )
    asked = replace(
        for_wheel(request, wheel),
        sampling={"max_tokens": max_tokens, "temperature": temperature},
        examples=examples,
        rollouts=rollouts,
        seconds=float(timeout),
        samples=str(samples.absolute()),
    )
    key = endpoint_key(request.base_url, key_variable)
    _create(samples)
    terminal.notice(f"Rollouts: {rollouts} for each of up to {examples} examples, with {model} at {base_url}")
    try:
        found = run_baseline([wheel], asked, key, timeout)
    finally:
        if any(samples.iterdir()):
            terminal.notice(f"Samples: {samples}")
    show_remarks(summarize(found))
    if all(rollout.reward is None for rollout in found):
        raise typer.Exit(FAILED)


def _create(folder: Path) -> None:
    """Create the folder. Raises CliError if it has files or cannot be created."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_used = any(folder.iterdir())
    except OSError as problem:
        raise CliError(
            f"--output: {folder} cannot be written: {problem.strerror}", "specify a writable folder", code=INVALID
        ) from problem
    if is_used:
        raise CliError(f"--output: {folder} is not empty", "specify a new folder", code=INVALID)
