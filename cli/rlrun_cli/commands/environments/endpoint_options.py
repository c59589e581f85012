"""Options and helpers for commands that run an environment against an OpenAI-compatible endpoint."""

import json
import os
from dataclasses import replace
from typing import Annotated, Any

import typer
from rich.text import Text
from rlrun.storage.verifiers_generations.package_form import PackageForm

from rlrun_cli.inputs.baseline_process import BaselineRequest
from rlrun_cli.inputs.environment_checks import Remark
from rlrun_cli.inputs.package_generation import form_of, module_of
from rlrun_cli.inputs.wheel_builder import Wheel
from rlrun_cli.remote.server import checked_url
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

PANEL = "Baseline"
BaseUrl = Annotated[
    str | None,
    typer.Option(help="URL of an OpenAI-compatible endpoint to run the environment against.", rich_help_panel=PANEL),
]
Model = Annotated[str | None, typer.Option(help="Name of the model at the endpoint.", rich_help_panel=PANEL)]
KeyVariable = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Environment variable with the endpoint's API key.", rich_help_panel=PANEL),
]
Arguments = Annotated[
    str, typer.Option(metavar="JSON", help="Arguments for load_environment().", rich_help_panel=PANEL)
]
Examples = Annotated[int, typer.Option(min=1, max=1000, help="Number of examples.", rich_help_panel=PANEL)]
MaxTokens = Annotated[int, typer.Option(min=1, help="Maximum number of tokens per turn.", rich_help_panel=PANEL)]
Temperature = Annotated[float, typer.Option(min=0.0, max=2.0, help="Sampling temperature.", rich_help_panel=PANEL)]
Timeout = Annotated[
    int,
    typer.Option(metavar="SECONDS", min=1, max=86_400, help="Deadline for all rollouts.", rich_help_panel=PANEL),
]


def read_request(base_url: str | None, model: str | None, args: str) -> BaselineRequest | None:
    """Return the requested evaluation, or None if no endpoint is given. `args` is JSON.

    Raises CliError if only one of --base-url and --model is given, or if the URL or `args` is invalid.
    """
    if base_url is None:
        if model is not None:
            raise CliError(
                "--model needs --base-url", "pass the URL of the endpoint that serves the model", code=INVALID
            )
        return None
    if not model:
        raise CliError("--base-url needs --model", "pass the name of the model at the endpoint", code=INVALID)
    if not base_url.startswith(("http://", "https://")):
        raise CliError(f"--base-url: {base_url!r} is not a URL", "write https://host[:port]/v1", code=INVALID)
    return BaselineRequest(folder="", module="", results="", base_url=base_url, model=model, args=read_arguments(args))


def read_arguments(args: str) -> dict[str, Any]:
    """Parse the arguments for `load_environment`. Raises CliError if they are not a JSON object."""
    try:
        document: Any = json.loads(args)
    except ValueError as problem:
        raise CliError(
            f"--args is not JSON: {problem}", """write --args '{"split": "train"}'""", code=INVALID
        ) from None
    if not isinstance(document, dict):
        raise CliError("--args is not a JSON object", """write --args '{"split": "train"}'""", code=INVALID)
    return document


def for_wheel(request: BaselineRequest, wheel: Wheel) -> BaselineRequest:
    """Return the request with `module` set to the package's module. Raises CliError for a verifiers.v1 taskset."""
    if form_of(wheel) is PackageForm.taskset:
        raise CliError(
            "only environments with load_environment() can be run here, not tasksets of verifiers.v1",
            "run verifiers' own `eval` against the endpoint; rlrun env check without --base-url checks the package",
            code=INVALID,
        )
    return replace(request, module=module_of(wheel))


def endpoint_key(base_url: str, variable: str | None) -> str:
    """Return the API key in environment variable `variable`, or an empty string if `variable` is None.

    Raises CliError if the variable is not set, or if the key would be sent without TLS.
    """
    if variable is None:
        return ""
    key = os.environ.get(variable, "")
    if not key:
        raise CliError(f"--key-variable: {variable} is not set", "set it to the endpoint's API key", code=INVALID)
    checked_url(base_url, "--base-url")
    return key


def show_remarks(remarks: list[Remark]) -> bool:
    """Print the remarks. Returns False if any of them is a problem."""
    console = output.out()
    for remark in remarks:
        style, word = ("bold red", "wrong") if remark.hint else ("green", "ok")
        console.print(Text(f"{word:<7}", style=style).append(remark.text, style="default not bold"))
        if remark.hint:
            console.print(Text(f"       do: {remark.hint}"))
    return not any(remark.hint for remark in remarks)
