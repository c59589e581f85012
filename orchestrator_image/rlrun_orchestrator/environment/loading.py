"""Importing the user's module and calling its `load_environment`, with every failure put into words."""

import logging
import os
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.schema.wire import Problem

from rlrun_orchestrator.environment.settings import EnvironmentSettings

log = logging.getLogger(__name__)


class LoadError(Exception):
    """The environment cannot be used."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(f"{reason}: {message}")
        self.problem = Problem(reason=reason, message=message)


@dataclass(frozen=True)
class Loaded:
    """A ready environment and its examples."""

    environment: Any
    """A `verifiers.Environment`."""
    train: Any | None
    """A `datasets.Dataset`, or None where the environment has only an eval dataset."""
    eval: Any | None
    """None where evaluation falls back to the training examples."""

    @property
    def train_examples(self) -> int:
        """Examples to train on."""
        return len(self.train) if self.train is not None else 0

    @property
    def eval_examples(self) -> int:
        """Examples to evaluate on: the eval dataset's, else the training dataset's."""
        return len(self.eval) if self.eval is not None else self.train_examples


def load(settings: EnvironmentSettings, folder: Path) -> Loaded:
    """Load the environment whose package is installed in `folder`. Raises LoadError.

    Must run in the main thread: verifiers installs signal handlers.
    """
    _prepare_process(folder)
    import verifiers as vf
    from verifiers.utils.config_utils import MissingKeyError

    try:
        environment = vf.load_environment(settings.id.split("@")[0], **settings.load_args)
        if not isinstance(environment, vf.Environment):
            raise TypeError(f"load_environment returned {type(environment).__name__}, not a verifiers.Environment")
        train = environment.get_dataset() if _has(environment, "dataset") else None
        evaluation = environment.get_eval_dataset() if _has(environment, "eval_dataset") else None
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        # SystemExit too: users' modules call sys.exit() where a key or a file is missing.
        log.exception("loading %s failed", settings.id)
        missing = next((e for e in _chain(error) if isinstance(e, MissingKeyError)), None)
        if missing is not None:
            names = ", ".join(missing.keys)
            raise LoadError(
                "SecretsMissing",
                f"{settings.id} needs the variables {names}: put them into a Secret and name it in the run's envFrom",
            ) from error
        raise LoadError("EnvironmentLoadFailed", _in_words(settings, error, folder)) from error
    loaded = Loaded(environment, train, evaluation)
    if not loaded.train_examples and not loaded.eval_examples:
        raise LoadError("EnvironmentLoadFailed", f"{settings.id} has no examples: its datasets are empty")
    return loaded


def _prepare_process(folder: Path) -> None:
    # The root file system is read-only: libraries that keep caches in the home folder get one that can be written.
    if not os.access(os.path.expanduser("~"), os.W_OK):
        os.environ["HOME"] = "/tmp"
    os.environ.setdefault("HF_HOME", "/tmp/huggingface")
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    if str(folder) not in sys.path:
        # Behind the image's own packages: a user's package must not replace what this server itself runs on.
        sys.path.append(str(folder))


def _has(environment: Any, which: str) -> bool:
    return getattr(environment, which, None) is not None or getattr(environment, f"{which}_source", None) is not None


def _chain(error: BaseException) -> list[BaseException]:
    chain, current = [], error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__  # type: ignore[assignment]
    return chain


def _in_words(settings: EnvironmentSettings, error: BaseException, folder: Path) -> str:
    # verifiers wraps what the module raised in a RuntimeError or ValueError of its own.
    cause = error.__cause__ if type(error) in (RuntimeError, ValueError) and error.__cause__ is not None else error
    where = user_line(cause, folder)
    message = f"{settings.id} did not load: {type(cause).__name__}: {cause}"
    if where:
        message += f" (at {where})"
    module = settings.package.replace("-", "_")
    if isinstance(cause, ModuleNotFoundError) and cause.name == module:
        return f"{message}. The package has no module {module!r}: its module must be named like the id"
    if isinstance(cause, ModuleNotFoundError):
        return f"{message}. Dependencies are not installed: push a wheel of {cause.name!r} too, or use an image with it"
    if isinstance(cause, TypeError) and "argument" in str(cause):
        return f"{message}. Compare the run's env.args with the signature of load_environment"
    return message


def user_line(error: BaseException, folder: Path) -> str | None:
    """`file:line in function: code` of the innermost frame in the user's package, else outside of our own packages."""
    frames = traceback.extract_tb(error.__traceback__)
    own = ("verifiers", "rlrun_orchestrator", "importlib")
    inside = [f for f in frames if Path(f.filename).is_relative_to(folder)]
    others = [f for f in frames if not f.filename.startswith("<") and not set(own) & set(Path(f.filename).parts)]
    if not inside and not others:
        return None
    frame = (inside or others)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno} in {frame.name}: {frame.line}"
