"""Pure functions that choose the Python and the verifiers version with which runs use a package's wheels."""

import io
import platform
import zipfile
from collections.abc import Sequence

from rlrun.storage.environment_image import (
    PYTHONS,
    Generation,
    ImagePython,
    UnsupportedPythonError,
    choose_python,
)
from rlrun.storage.package_versions import admits
from rlrun.storage.verifiers_generations.generation_choice import VERIFIERS, choose_generation, image_versions
from rlrun.storage.verifiers_generations.package_form import PackageForm, package_form

from rlrun_cli.inputs.wheel_builder import Wheel


def module_of(wheel: Wheel) -> str:
    """Return the name of the module that a run imports."""
    return wheel.name.replace("-", "_")


def form_of(wheel: Wheel) -> PackageForm:
    """Return the form in which the wheel's module defines its environment, `unknown` for a damaged wheel."""
    try:
        with zipfile.ZipFile(io.BytesIO(wheel.data)) as archive:
            names = set(archive.namelist())
            return package_form(module_of(wheel), lambda path: archive.read(path) if path in names else None)
    except zipfile.BadZipFile:
        return PackageForm.unknown


def pushed_verifiers(wheels: Sequence[Wheel]) -> str | None:
    """Return the version of verifiers among the wheels, or None if the wheels use the image's version."""
    return next((wheel.version for wheel in wheels if wheel.name == VERIFIERS), None)


def python_of(wheels: Sequence[Wheel]) -> ImagePython:
    """Return the Python version with which the wheels run. The last wheel, the environment's package, determines it.

    If the package allows no Python of the image, returns the oldest one; `requirements.conflicts` reports this.
    """
    try:
        return choose_python(wheels[-1].requires_python)
    except UnsupportedPythonError:
        return PYTHONS[0]


def problem_of_this_python(wheels: Sequence[Wheel]) -> str:
    """Return why the Python that runs this process cannot run the wheels, or an empty string if it can."""
    this, wanted = platform.python_version(), wheels[-1].requires_python
    return "" if admits(wanted, this) else f"requires-python asks for {wanted}, but this Python is {this}"


def generation_of(wheels: Sequence[Wheel]) -> Generation:
    """Return the verifiers generation of the wheels. The last wheel is the environment's package.

    Raises UnsupportedVerifiersError.
    """
    return choose_generation(wheels[-1].requires, form_of(wheels[-1]), pushed_verifiers(wheels), python_of(wheels))


def version_of_verifiers(wheels: Sequence[Wheel]) -> str:
    """Return the version of verifiers with which the wheels run. Raises UnsupportedVerifiersError."""
    return pushed_verifiers(wheels) or image_versions()[generation_of(wheels)]
