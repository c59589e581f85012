"""Imports the user's module, and calls its `load_environment` or loads the taskset that it exports.

Every failure is reported with a message for users.
"""

import importlib
import importlib.metadata
import logging
import os
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from packaging.markers import UndefinedComparison, UndefinedEnvironmentName
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from rlrun.constants import Reason
from rlrun.protocol.environment import EnvironmentConfig, linked_secret
from rlrun.storage.verifiers_generations.generation_choice import VERIFIERS, image_versions, instead_of

from rlrun_environment.worker.plain_contract import plain_contract_violation
from rlrun_environment.worker.user_code.load_error import LoadError
from rlrun_environment.worker.user_code.loaded import EnvironmentForm, Loaded
from rlrun_environment.worker.user_code.sanitize import describe_exception
from rlrun_environment.worker.user_code.tracebacks import user_line

log = logging.getLogger(__name__)

MAX_SHOWN = 3
"""Maximum number of requirements in one message."""


def load(config: EnvironmentConfig, folder: Path) -> Loaded:
    """Load the environment from the package installed in `folder`. Raises LoadError.

    Must run in the main thread, because verifiers installs signal handlers.
    """
    _prepare_process(folder)
    try:
        loaded = _load(config, folder)
    except KeyboardInterrupt:
        raise
    except LoadError as error:
        raise LoadError(error.problem.reason, f"{config.id} did not load: {error.problem.message}.") from error
    except BaseException as error:
        # Including SystemExit: user modules call sys.exit() when a key or a file is missing.
        log.exception("Loading %s failed", config.id)
        missing = next((e for e in _chain(error) if type(e).__name__ == "MissingKeyError"), None)
        if missing is not None:
            names = ", ".join(map(str, getattr(missing, "keys", None) or [missing]))
            raise LoadError(
                Reason.SECRETS_MISSING,
                f"{config.id} needs these environment variables: {names}. Store them in {_secret_hint(config)}a Secret "
                "that the run's envFrom lists.",
            ) from error
        raise LoadError(Reason.ENVIRONMENT_LOAD_FAILED, _load_failure(config, error, folder)) from error
    if not loaded.train_examples and not loaded.eval_examples:
        raise LoadError(Reason.ENVIRONMENT_LOAD_FAILED, f"{config.id} has no examples: its datasets are empty.")
    return loaded


def _secret_hint(config: EnvironmentConfig) -> str:
    if config.owner is None:
        return ""
    return f"Secret {linked_secret(f'{config.owner}/{config.package}')} of the run's namespace, or in "


def _load(config: EnvironmentConfig, folder: Path) -> Loaded:
    module = importlib.import_module(config.package.replace("-", "_"))
    if _exports_taskset(module) and not (hasattr(module, "load_environment") and _has_environments()):
        # The taskset's programs and tool servers run as separate processes.
        prepare_programs(folder)
        from rlrun_environment.worker.tasksets.environment_fields import load_taskset

        return load_taskset(module, config)
    if not hasattr(module, "load_environment"):
        where = getattr(module, "__file__", None)
        if where is None:
            name = module.__name__
            raise LoadError(
                Reason.ENVIRONMENT_LOAD_FAILED,
                f"The wheel has the folder {name} without {name}/__init__.py; include this file in the build",
            )
        raise AttributeError(
            f"module {module.__name__!r} ({where}) does not have a 'load_environment' function, nor a taskset or an "
            "environment of verifiers.v1 in __all__"
        )
    args = config.load_args
    environment = module.load_environment(**args)
    if "verifiers" in sys.modules:
        # Not imported for an environment without verifiers, because importing takes seconds and much memory.
        import verifiers as vf

        environment_type: Any = getattr(vf, "Environment", ())
        if isinstance(environment, environment_type):
            environment.env_id = environment.env_id or config.id.split("@")[0]
            environment.env_args = environment.env_args or args
            train = environment.get_dataset() if _has(environment, "dataset") else None
            evaluation = environment.get_eval_dataset() if _has(environment, "eval_dataset") else None
            return Loaded(environment, train, evaluation)
    reason = plain_contract_violation(environment)
    if reason is not None:
        raise TypeError(
            f"load_environment returned {type(environment).__name__}, which is neither a verifiers.Environment nor "
            f"a plain environment: {reason}"
        )
    return Loaded(
        environment,
        getattr(environment, "dataset", None),
        getattr(environment, "eval_dataset", None),
        EnvironmentForm.plain,
    )


def _has_environments() -> bool:
    """Return True if this version of verifiers supports `load_environment`, which version 0.4 does not."""
    return hasattr(sys.modules["verifiers"], "Environment")


def _exports_taskset(module: ModuleType) -> bool:
    """Return True if the module exports a taskset or an environment of verifiers.v1."""
    v1: Any = sys.modules.get("verifiers.v1")
    if not hasattr(v1, "AgentConfig"):
        # The module did not import verifiers.v1, or this is an older form of it, whose packages define
        # `load_environment`.
        return False
    found = (getattr(module, name, None) for name in getattr(module, "__all__", ()))
    return any(isinstance(one, type) and issubclass(one, v1.Taskset | v1.Env) for one in found)


def prepare_programs(folder: Path) -> None:
    """Set variables for processes that verifiers.v1 starts: uv uses this interpreter, and tool servers find the user's
    package in `folder`, after the packages of their interpreter.
    """
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)])
    os.environ.setdefault("UV_PYTHON", sys.executable)
    # PYTHONPATH precedes the installed packages, so it contains only a module that Python imports at startup.
    start = Path(tempfile.mkdtemp(prefix="rlrun-start-"))
    (start / "sitecustomize.py").write_text(f"import sys\n\nsys.path.append({str(folder.absolute())!r})\n")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(start), *filter(None, [os.environ.get("PYTHONPATH")])])


def _prepare_process(folder: Path) -> None:
    # The root file system is read-only, so libraries with caches in the home folder get a writable one.
    if not os.access(os.path.expanduser("~"), os.W_OK):
        os.environ["HOME"] = "/tmp"
    os.environ.setdefault("HF_HOME", "/tmp/huggingface")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    # HTTP clients read these variables when they are created. The endpoint of example runs is on this machine.
    listed = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
    if listed.strip() != "*" and "127.0.0.1" not in listed.split(","):
        listed = f"{listed},127.0.0.1,localhost".lstrip(",")
    os.environ.update({"no_proxy": listed, "NO_PROXY": listed})
    if str(folder) not in sys.path:
        # Append to the path, so that a user's package cannot replace a library of this process.
        sys.path.append(str(folder))


def _has(environment: Any, which: str) -> bool:
    return getattr(environment, which, None) is not None or getattr(environment, f"{which}_source", None) is not None


def _chain(error: BaseException) -> list[BaseException]:
    chain, current = [], error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__  # type: ignore[assignment]
    return chain


def _load_failure(config: EnvironmentConfig, error: BaseException, folder: Path) -> str:
    where = user_line(error, folder)
    message = f"{config.id} did not load: {describe_exception(error)}"
    if where:
        message += f" (at {where})"
    module = config.package.replace("-", "_")
    if isinstance(error, ModuleNotFoundError) and error.name == module:
        return f"{message}. The package has no module {module!r}. The module's name must match the id."
    if versions := unmet_versions(config.package, folder):
        return f"{message}. {versions}"
    if isinstance(error, ModuleNotFoundError):
        top = (error.name or "").partition(".")[0]
        if top == module:
            return f"{message}. The package has no module {error.name!r}. Include it in the build."
        if top != error.name and top in sys.modules:
            return (
                f"{message}. The environment was written for a different version of {top}; this image has "
                f"{_version_of(top)}."
            )
        return f"{message}. Dependencies are not installed. Push a wheel of {error.name!r} too, or add it to the image."
    if isinstance(error, TypeError) and any(kind in str(error) for kind in ("keyword argument", "positional argument")):
        return f"{message}. Compare the run's env.args with the signature of load_environment."
    return message


def unmet_versions(package: str, folder: Path) -> str:
    """Return a sentence about the requirements of the package in `folder` that are installed in this image in another
    version, or an empty string if there are none.
    """
    wanted, present = [], []
    for found in importlib.metadata.Distribution.discover(name=package, path=[str(folder)]):
        for requirement in _requirements(found.requires or ()):
            version = installed_version(requirement.name)
            if version is not None and not requirement.specifier.contains(version, prereleases=True):
                wanted.append(f"{requirement.name} {requirement.specifier}")
                present.append(_present(requirement.name, version, requirement.specifier))
    if not wanted:
        return ""
    shown = slice(MAX_SHOWN)
    return f"The environment was written for {', '.join(wanted[shown])}; this image has {', '.join(present[shown])}."


def has_absent_requirements(folder: Path) -> bool:
    """Return True if this Python lacks a package, or an extra, that a package in `folder` requires."""
    for found in importlib.metadata.distributions(path=[str(folder)]):
        for requirement in _requirements(found.requires or ()):
            if installed_version(requirement.name) is None:
                return True
            for extra in requirement.extras:
                asked = _requirements(importlib.metadata.requires(requirement.name) or (), extra)
                if any(installed_version(each.name) is None for each in asked):
                    return True
    return False


def _requirements(texts: Iterable[str], extra: str = "") -> Iterator[Requirement]:
    """Yield the requirements whose markers apply to this Python. Invalid requirements are skipped."""
    for text in texts:
        try:
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                yield requirement
        except (InvalidRequirement, UndefinedComparison, UndefinedEnvironmentName):
            continue


def installed_version(package: str) -> str | None:
    """Return the version of a package in this Python, or None if it is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_of(module: str) -> str:
    """Return the name of a module's package, with its version if the package has the same name."""
    version = installed_version(module)
    return _present(module, version, SpecifierSet()) if version else module


def _present(package: str, version: str, required: SpecifierSet) -> str:
    """Return a package and its installed version. For verifiers, returns both versions that the image has."""
    if package == VERIFIERS and version in image_versions().values():
        return f"{package} {instead_of(required, version)}"
    return f"{package} {version}"
