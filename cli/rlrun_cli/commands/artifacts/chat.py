"""Command `chat`: sends messages to a deployed adapter and streams the responses."""

import sys
from typing import Annotated, Any

import typer

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.completions import Message, ask, model_name
from rlrun_cli.remote.context import with_cluster
from rlrun_cli.remote.run_storage import s3_operation
from rlrun_cli.remote.server import DirectServer, ProxiedServer, Server, locate_server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import CONTROL_CHARACTERS, INVALID, CliError, show_error

STDIN = "-"
PROMPT_MARK = "> "
CHAT_EPILOG = """Examples:

  rlrun chat reverse-text-x7k2p-step-000030-842409bd "reverse: hello"
  cat question.txt | rlrun chat reverse-text-x7k2p-step-000030-842409bd -
  rlrun chat team-b/reverse-text-x7k2p-step-000030-842409bd

Without PROMPT, each line you type is a message of one conversation; Ctrl-D ends the conversation. The adapter must be \
deployed (rlrun adapters deploy). Requires `create rladapters/chat` in the adapter's namespace, which is part of the \
`edit` role. Programs can use the same URL with any OpenAI client: docs/guides/continue.md."""


@with_cluster
def chat(
    api: RemoteCluster,
    adapter: Annotated[
        str, typer.Argument(help="Deployed adapter: ADAPTER, or its model name, NAMESPACE/ADAPTER or BASE:ADAPTER.")
    ],
    prompt: Annotated[str | None, typer.Argument(help="Message; - reads it from standard input.")] = None,
    system: Annotated[str, typer.Option("--system", help="System message of the conversation.")] = "",
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Maximum number of tokens per response.")] = None,
    temperature: Annotated[
        float | None, typer.Option(min=0.0, max=2.0, help="Sampling temperature; 0 selects the most probable tokens.")
    ] = None,
    server: Server = None,
) -> None:
    """Chat with a deployed adapter and stream its responses."""
    if prompt == STDIN:
        prompt = sys.stdin.read()
    if prompt is not None and not prompt.strip():
        raise CliError("the message is empty", "pass the message as PROMPT, or on standard input with -", code=INVALID)
    given = {"max_tokens": max_tokens, "temperature": temperature}
    options = {name: value for name, value in given.items() if value is not None}
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    with s3_operation(f"ask {adapter}"):
        remote_server = locate_server(api, server)
        model = model_name(api, remote_server, adapter)
        if prompt is not None:
            _answer(remote_server, model, [*messages, {"role": "user", "content": prompt}], options)
            return
    _converse(remote_server, model, messages, options)


def _converse(
    server: DirectServer | ProxiedServer, model: str, messages: list[Message], options: dict[str, Any]
) -> None:
    """Read messages and print responses until the end of standard input. Ctrl-C interrupts a response."""
    is_terminal = sys.stdin.isatty()
    output.notice(f"Conversation with {model}. Ctrl-C interrupts a response; Ctrl-D ends the conversation.")
    while True:
        if is_terminal:
            typer.echo(PROMPT_MARK, nl=False, err=True)
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            line = ""
        if not line:
            return
        if not line.strip():
            continue
        asked: Message = {"role": "user", "content": line.rstrip("\n")}
        try:
            with s3_operation(f"ask {model}"):
                text = _answer(server, model, [*messages, asked], options)
        except KeyboardInterrupt:
            typer.echo()
            continue
        except CliError as error:
            if not is_terminal:
                raise
            show_error(error)
            continue
        messages += [asked, {"role": "assistant", "content": text}]


def _answer(server: DirectServer | ProxiedServer, model: str, messages: list[Message], options: dict[str, Any]) -> str:
    pieces = []
    for piece in ask(server, model, messages, options):
        pieces.append(piece)
        # Text from a model must not control the terminal.
        typer.echo(piece.translate(CONTROL_CHARACTERS), nl=False)
        sys.stdout.flush()
    typer.echo()
    return "".join(pieces)
