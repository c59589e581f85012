"""`python -m rlrun_environment.worker.example_check`: runs one example with a scripted model.

`rlrun env check --play` runs it on the user's machine, with the code that loads and runs environments in pods. The
environment's configuration is in `RLRUN_ENVIRONMENT`. The report is a JSON object in the file given as argument.
"""

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from rlrun.protocol.environment import DemonstrationRequest, EnvironmentConfig, GroupRequest, Split
from rlrun.service.errors import ProblemError
from rlrun.storage.environment_image import Generation, image_packages
from rlrun.storage.verifiers_generations.generation_choice import VERIFIERS

from rlrun_environment.worker.__main__ import runner_for
from rlrun_environment.worker.example_endpoint import SAMPLING, ExampleEndpoint
from rlrun_environment.worker.loading import has_absent_requirements, installed_version, load
from rlrun_environment.worker.user_code.demonstrations import demonstrate
from rlrun_environment.worker.user_code.load_error import LoadError
from rlrun_environment.worker.user_code.loaded import Loaded

ROLLOUTS = 2
"""Number of rollouts of the example. More than one, because a reward function may compare the rollouts of a group."""
NO_REFERENCE = "1"
"""Response for an example without a reference answer."""


def main() -> None:
    """Run the example and write the report."""
    parser = argparse.ArgumentParser(prog="python -m rlrun_environment.worker.example_check")
    parser.add_argument("report", type=Path, help="file for the report")
    parser.add_argument("--folder", type=Path, required=True, help="folder with the unpacked package")
    parser.add_argument("--verifiers", required=True, help="version of verifiers that runs use for the package")
    parser.add_argument("--seconds", type=float, required=True, help="time limit for the rollouts")
    arguments = parser.parse_args(sys.argv[1:])
    report = check(EnvironmentConfig.from_variables(os.environ), arguments)
    arguments.report.write_text(json.dumps(report), encoding="utf-8")


def check(config: EnvironmentConfig, arguments: argparse.Namespace) -> dict[str, Any]:
    """Run the example. Returns a dict with `rewards` and `requests`, or with `problem`, or with `missing`, the
    requirement that this Python does not satisfy.
    """
    installed = installed_version(VERIFIERS)
    if installed and installed != arguments.verifiers:
        return {"missing": f"{VERIFIERS} {arguments.verifiers}; it has {installed}"}
    try:
        loaded = load(config, arguments.folder)
    except LoadError as error:
        cause = error.__cause__
        module = cause.name if isinstance(cause, ModuleNotFoundError) and cause.name else ""
        if module and _may_be_in_pods(module, config, arguments.folder):
            return {"missing": f"the module {module}"}
        return {"problem": error.problem.message}
    return asyncio.run(_play(loaded, arguments))


def _may_be_in_pods(module: str, config: EnvironmentConfig, folder: Path) -> bool:
    """Return True if pods may have a module that this Python lacks.

    The module belongs to a package of the image that is missing here or has another version, or may belong to a
    requirement that is missing here.
    """
    top = module.partition(".")[0]
    if top == config.package.replace("-", "_"):
        return False
    packages = [package for generation in Generation for package in image_packages(generation).values()]
    owners = [package for package in packages if top in package.modules]
    if owners and all(installed_version(owner.name) != owner.version for owner in owners):
        return True
    return has_absent_requirements(folder)


async def _play(loaded: Loaded, arguments: argparse.Namespace) -> dict[str, Any]:
    runner = runner_for(loaded, arguments.folder)
    split = Split.train if loaded.train_examples else Split.eval
    endpoint = ExampleEndpoint(_reference(loaded, split))
    try:
        await runner.check_example()
        with endpoint.serving():
            group = GroupRequest(
                group_id="example",
                example_index=0,
                split=split,
                rollouts=ROLLOUTS,
                base_url=endpoint.base_url,
                model="scripted",
                sampling=dict(SAMPLING),
                deadline_seconds=arguments.seconds,
            )
            rollouts = (await runner.run(group)).rollouts
    except (LoadError, ProblemError) as error:
        return {"problem": error.problem.message}
    finally:
        await runner.close()
    failed = next((rollout.error for rollout in rollouts if rollout.error is not None), None)
    if failed is not None:
        return {"problem": failed.message}
    return {"rewards": [rollout.reward for rollout in rollouts], "requests": endpoint.requests}


def _reference(loaded: Loaded, split: Split) -> str:
    """Return the example's reference answer, which reward functions can read."""
    try:
        messages = demonstrate(loaded, DemonstrationRequest(example_index=0, split=split)).completion
    except Exception:
        # Rows may have any content. One that cannot be read fails when the example is prepared, with the reason.
        return NO_REFERENCE
    texts = [message.get("content") for message in messages if message.get("role") == "assistant"]
    return texts[-1] if texts and isinstance(texts[-1], str) and texts[-1] else NO_REFERENCE


if __name__ == "__main__":
    main()
