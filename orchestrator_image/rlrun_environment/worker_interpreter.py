"""Chooses the workers' interpreter: the image has one for each Python version and generation of verifiers.

The choice is based on the package's files, which are not imported, because the server runs no user code.
"""

import importlib.metadata
import logging
import sys
from pathlib import Path

from rlrun.constants import Reason
from rlrun.storage.verifiers_generations.generation_choice import (
    VERIFIERS,
    UnsupportedVerifiersError,
    choose_generation,
)
from rlrun.storage.verifiers_generations.package_form import HARNESS_ONLY, MAX_SOURCE_BYTES, PackageForm, package_form

from rlrun_environment.package_installer import FIRST_ON_PATH, PackageError, installed_distribution, python_of
from rlrun_environment.worker_pool import Interpreter

log = logging.getLogger(__name__)


def choose_interpreter(package: str, folder: Path, interpreters: Path) -> Interpreter:
    """Return the interpreter for the package installed in `folder`.

    `interpreters` is a folder with interpreters by Python version and generation. Outside of the image this folder does
    not exist, and workers use the interpreter of this process. Raises PackageError if the image has no Python that the
    package allows, or the package is only a harness or contains a version of verifiers that runners do not support.
    """
    own = folder / FIRST_ON_PATH
    pushed = next((found.version for found in importlib.metadata.distributions(name=VERIFIERS, path=[str(own)])), None)
    distribution = installed_distribution(folder, package)
    form = package_form(package.replace("-", "_"), lambda path: _read(folder / path))
    if form is PackageForm.harness:
        raise PackageError(Reason.ENVIRONMENT_INSTALL_FAILED, f"{package} {HARNESS_ONLY}.")
    version = python_of(folder, package)
    try:
        generation = choose_generation((distribution and distribution.requires) or (), form, pushed, version)
    except UnsupportedVerifiersError as error:
        raise PackageError(Reason.ENVIRONMENT_INSTALL_FAILED, f"{package} cannot be run: {error}.") from error
    python = interpreters / version.version / generation / "bin" / "python"
    own_verifiers = f" and its own verifiers {pushed}" if pushed else ""
    log.info("%s is run with Python %s, %s%s", package, version, generation, own_verifiers)
    return Interpreter(str(python) if interpreters.exists() else sys.executable, own if pushed else None)


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            # Read one byte more than the limit to detect a larger file.
            return file.read(MAX_SOURCE_BYTES + 1)
    except OSError:
        return None
