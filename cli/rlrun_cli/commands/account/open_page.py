"""Command `open`: opens the web page, already logged in."""

import sys
import webbrowser
from typing import Annotated
from urllib.parse import quote

import typer

from rlrun_cli.remote.cluster import RemoteCluster
from rlrun_cli.remote.context import with_cluster
from rlrun_cli.remote.run_storage import s3_operation
from rlrun_cli.remote.server import FORWARDED_PORT, ProxiedServer, Server, locate_server
from rlrun_cli.terminal import output
from rlrun_cli.terminal.errors import INVALID, CliError

CODE_PATH = "/rlrun/v1/session:code"
OPEN_PAGE_EPILOG = """Examples:

  rlrun open
  rlrun open --no-browser --server https://rlrun.example.com

The URL logs in one browser and is valid for a minute. The login code is in the URL's fragment, which browsers never \
send to a server."""


@with_cluster
def open_page(
    api: RemoteCluster,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open the URL in a browser on this machine.")
    ] = True,
    server: Server = None,
) -> None:
    """Open the web page, already logged in, and print its URL."""
    with s3_operation("open the page"):
        remote_server = locate_server(api, server)
        if isinstance(remote_server, ProxiedServer):
            raise CliError(
                "the platform has not published a URL for rlrun-server, so browsers cannot reach it",
                f"in another terminal run: {remote_server.port_forward()}; then: "
                f"rlrun open --server http://127.0.0.1:{FORWARDED_PORT}",
                code=INVALID,
            )
        code = (remote_server.send("POST", CODE_PATH, {}) or {}).get("code")
    if not isinstance(code, str) or not code:
        raise CliError(f"{remote_server.url} returned no login code", "check --server and the version of rlrun-server")
    address = f"{remote_server.url}/#login={quote(code, safe='')}"
    typer.echo(address)
    if browser and sys.stdout.isatty() and webbrowser.open(address):
        output.notice("Opened in a browser. If it does not appear, open the URL above within a minute.")
