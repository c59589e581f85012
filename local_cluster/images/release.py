"""`python -m local_cluster.images.release`: pushes a version's images and chart to an OCI registry.

Requires helm, syft and cosign in addition to the requirements of `make push`, and a clean checkout. A release's chart
names its images by digest. Images and chart are signed, and each image's SBOM is attached to it as a signed
attestation. A version that already exists in the registry is rejected before the build. Prints the path of the file
with all references.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from local_cluster.host.errors import LocalClusterError
from local_cluster.host.paths import REPOSITORY
from local_cluster.host.progress import progress
from local_cluster.images.push import (
    BASE,
    ENGINE,
    GPU_IMAGES,
    SBOMS,
    VALUE_NAMES,
    Execute,
    Pushed,
    add_arguments,
    chart_version,
    check_registry,
    execute,
    push,
    write,
    write_sboms,
)

CHART = REPOSITORY / "charts" / "rlrun"
FOLDER = REPOSITORY / "build" / "release"
RECORD = REPOSITORY / "build" / "release.json"
PROGRAMS = ("helm", "syft", "cosign", "git")
SECONDS = 300.0
MISSING = re.compile(r"not found|\b404\b|NAME_UNKNOWN|MANIFEST_UNKNOWN", re.IGNORECASE)
"""Pattern of helm's errors for a chart that does not exist in the registry."""
DIGEST = re.compile(r"^Digest: (sha256:[0-9a-f]{64})$", re.MULTILINE)

Ask = Callable[[Sequence[str]], str]
"""Function that runs a command and returns its output. Raises LocalClusterError."""


def ask(command: Sequence[str]) -> str:
    """Return the output of the command. Raises LocalClusterError."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise LocalClusterError(f"`{' '.join(command[:2])}` did not finish within {SECONDS:.0f} s.") from None
    if done.returncode:
        raise LocalClusterError(f"`{' '.join(command[:2])}` failed: {done.stderr.strip() or done.stdout.strip()}")
    # helm writes the digest of a chart to stderr.
    return done.stdout + done.stderr


def check_programs(which: Callable[[str], str | None] = shutil.which) -> None:
    """Raise LocalClusterError if a program is missing."""
    missing = [name for name in PROGRAMS if not which(name)]
    if missing:
        raise LocalClusterError(f"{', '.join(missing)} is not installed. A release needs {', '.join(PROGRAMS)}.")


def clean_revision(ask: Ask = ask) -> str:
    """Return the commit of the checkout. Raises LocalClusterError if files differ from the commit."""
    git = ("git", "-C", str(REPOSITORY))
    changed = ask([*git, "status", "--porcelain"]).strip()
    if changed:
        raise LocalClusterError(f"The checkout has changes that are not committed. Commit or remove them:\n{changed}")
    return ask([*git, "rev-parse", "HEAD"]).strip()


def pinned_values(text: str, pushed: Pushed) -> str:
    """Return the chart's values.yaml with the digests of the images as defaults. Comments are kept."""
    names = {VALUE_NAMES.get(image.short, image.short): pushed.digests[image] for image in pushed.tagged}
    text = _replace(text, r'^(  registry: )""$', rf'\g<1>"{pushed.registry}"')
    for name, digest in names.items():
        text = _replace(text, rf'^(  {name}: {{.*digest: )""', rf'\g<1>"{digest}"')
    repository, _, digest = pushed.engine.partition("@")
    # The engine's repository includes its registry. With null, the chart would prepend images.registry.
    place = rf'\g<1>registry: "", repository: {repository}\g<2>"{digest}"'
    return _replace(text, r'^(  inference: {)registry: null, repository: [^,]+(,.*digest: )""', place)


def check_values(registry: str) -> None:
    """Raise LocalClusterError unless digests can be inserted into the chart's values.yaml."""
    images = dict.fromkeys(GPU_IMAGES, "")
    pinned_values((CHART / "values.yaml").read_text(encoding="utf-8"), Pushed(registry, images, images, BASE, ENGINE))


def check_is_new(registry: str, *, plain_http: bool, ask: Ask = ask) -> None:
    """Raise LocalClusterError unless the registry confirms that it lacks the chart of this version."""
    place, version = f"{registry}/charts/{CHART.name}", chart_version()
    options = ["--plain-http"] if plain_http else []
    try:
        ask(["helm", "show", "chart", f"oci://{place}", "--version", version, *options])
    except LocalClusterError as error:
        if MISSING.search(str(error)):
            return
        raise LocalClusterError(
            f"The registry did not report whether it has version {version} of the chart. {error}\nLog in with `helm "
            f"registry login`. Create the repository {place} if the registry refuses requests for missing repositories."
        ) from None
    raise LocalClusterError(
        f"{place} already has version {version}, and a release is immutable. Increase `version` and `appVersion` in "
        "Chart.yaml. If that release was interrupted and nobody uses it, delete its tag and repeat the command."
    )


def _replace(text: str, pattern: str, replacement: str) -> str:
    changed, count = re.subn(pattern, replacement, text, flags=re.MULTILINE)
    if count != 1:
        raise LocalClusterError(f"values.yaml of the chart has {count} lines like {pattern} instead of one.")
    return changed


def package_chart(pushed: Pushed, execute: Execute) -> Path:
    """Return the archive of the chart, with the digests of the images."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    chart = FOLDER / CHART.name
    shutil.copytree(CHART, chart, ignore=shutil.ignore_patterns("__pycache__"))
    values = chart / "values.yaml"
    values.write_text(pinned_values(values.read_text(encoding="utf-8"), pushed), encoding="utf-8")
    execute(["helm", "package", str(chart), "--destination", str(FOLDER)])
    return FOLDER / f"{CHART.name}-{chart_version()}.tgz"


def push_chart(archive: Path, registry: str, *, plain_http: bool, ask: Ask = ask) -> str:
    """Push the chart and return its reference by digest. Raises LocalClusterError."""
    options = ["--plain-http"] if plain_http else []
    answer = ask(["helm", "push", str(archive), f"oci://{registry}/charts", *options])
    found = DIGEST.search(answer)
    if found is None:
        raise LocalClusterError(f"`helm push` printed no digest of the chart: {answer.strip()}")
    return f"{registry}/charts/{CHART.name}@{found[1]}"


def sign(references: Sequence[str], sboms: Mapping[str, Path], key: str, *, plain_http: bool, execute: Execute) -> None:
    """Sign the images and the chart, and attach the SBOMs. With an empty `key`, cosign asks for a login."""
    options = [*(["--key", key] if key else []), *(["--allow-http-registry"] if plain_http else [])]
    for reference in references:
        progress.say(f"==> cosign sign {reference}")
        execute(["cosign", "sign", "--yes", *options, reference])
        if reference in sboms:
            predicate = ["--type", "cyclonedx", "--predicate", str(sboms[reference])]
            execute(["cosign", "attest", "--yes", *options, *predicate, reference])


def main(arguments: Sequence[str] | None = None, ask: Ask = ask) -> int:
    """Make a release, and print the path of the file with the references. Returns 1 after an error."""
    parser = argparse.ArgumentParser(prog="make release", description="Push and sign the images and the chart.")
    add_arguments(parser)
    parser.add_argument("--key", default="", help="key of cosign: a file or a KMS; default: keyless, with a login")
    parser.add_argument("--plain-http", action="store_true", help="the registry has no TLS, for trials")
    given = parser.parse_args(arguments)
    try:
        check_programs()
        revision = clean_revision(ask)
        check_registry(given.registry)
        check_values(given.registry)
        check_is_new(given.registry, plain_http=given.plain_http, ask=ask)
        pushed = push(given, GPU_IMAGES, chart_version(), revision)
        references = pushed.references
        write_sboms(references, execute)
        sboms = {reference: SBOMS / f"{image.name}.json" for image, reference in references.items()}
        signing = partial(sign, sboms=sboms, key=given.key, plain_http=given.plain_http, execute=execute)
        # Push the chart last, because the command may be repeated until the registry has it.
        signing(list(references.values()))
        chart = push_chart(package_chart(pushed, execute), given.registry, plain_http=given.plain_http, ask=ask)
        signing([chart])
        images = {image.name: reference for image, reference in references.items()} | {"vllm": pushed.engine}
        facts = {"version": chart_version(), "revision": revision, "chart": chart, "base": pushed.base}
        record = {**facts, "images": images}
        write(RECORD, json.dumps(record, indent=2) + "\n")
    except LocalClusterError as error:
        progress.say(str(error))
        return 1
    print(RECORD.relative_to(REPOSITORY))
    return 0


if __name__ == "__main__":
    sys.exit(main())
