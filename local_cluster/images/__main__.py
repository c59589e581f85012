"""`python -m local_cluster.images`: build, import, list, prune, and run a command inside an image."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.progress import progress
from local_cluster.images import buildah, containerd, ensure
from local_cluster.images.catalog import find
from local_cluster.images.run import run_in_image

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)
Names = Annotated[list[str] | None, typer.Argument(help="Which images (trainer, operator, ...); all when omitted.")]


@app.command()
def build(names: Names = None) -> None:
    """Build the images whose Dockerfile, locks, code or base changed."""
    ensure.build_images(find(names or []))


@app.command("import")
def import_(names: Names = None) -> None:
    """Move built images into the local cluster, which must be up."""
    ensure.import_images(find(names or []))


@app.command("all")
def all_(names: Names = None) -> None:
    """Build and import what changed."""
    ensure.ensure_images(find(names or []))


@app.command("list")
def list_() -> None:
    """Show each image's content key and where it is present."""
    built, table = buildah.local_tags(), Table("image", "key", "built", "imported")
    try:
        imported = containerd.image_digests()
    except LocalClusterError:  # no cluster is up: what it holds can't be known
        imported = None
    for image, key in ensure.keys().items():
        present = "cluster down" if imported is None else _yes(image.reference(key) in imported)
        table.add_row(image.name, key, _yes(image.reference(key) in built), present)
    Console().print(table)


@app.command()
def prune() -> None:
    """Remove what earlier builds left in the builder's storage."""
    buildah.prune()


@app.command(context_settings={"allow_interspersed_args": False})
def run(
    name: Annotated[str, typer.Argument(help="Which image.")],
    command: Annotated[list[str], typer.Argument(help="What to run in it, after `--`.")],
    env: Annotated[list[str] | None, typer.Option(help="A variable, NAME=VALUE; repeatable.")] = None,
    volume: Annotated[list[str] | None, typer.Option(help="A mount, SOURCE:TARGET[:ro]; repeatable.")] = None,
    root: Annotated[bool, typer.Option(help="As root, not as the image's user.")] = False,
) -> None:
    """Run a command inside an image; the repository is mounted read-only and is the working directory."""
    (image,) = find([name])
    pairs = [pair.partition("=") for pair in env or []]
    environment = {key: value for key, _, value in pairs}
    words = command[1:] if command[:1] == ["--"] else command
    sys.exit(run_in_image(image, words, environment=environment, volumes=volume or [], as_root=root))


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def main() -> None:
    """Run the command line; an expected failure is one message, not a traceback."""
    try:
        app()
    except LocalClusterError as error:
        progress.say(str(error))
        sys.exit(1)
    finally:
        progress.save()


if __name__ == "__main__":
    main()
