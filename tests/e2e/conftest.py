"""Real runs on the local cluster. Bring it up first (`make test-e2e` does)."""

import copy
import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from demo.cluster import local_cluster
from demo.install import EXAMPLES, S3Access, install_platform, push_environment
from demo.kubectl import Kubectl, Object, condition, wait_for
from demo.watch import describe

BROKEN_ENVIRONMENTS = Path(__file__).parent / "environments"


@dataclass(frozen=True)
class Platform:
    """The cluster with everything installed that a platform team installs."""

    kubectl: Kubectl
    s3: S3Access

    def run_object(self, name: str, namespace: str, **spec: Any) -> Object:
        """The example's RLRun under another name, with other values at the top of its spec."""
        run = yaml.safe_load((EXAMPLES / "reverse-text.yaml").read_text())
        run["metadata"] = {"name": name, "namespace": namespace}
        run["spec"] = copy.deepcopy(run["spec"]) | spec
        return run

    def model_object(self, name: str, model_id: str) -> Object:
        """The example's RLModel under another name and id, for tests that break it."""
        model = yaml.safe_load((EXAMPLES / "models" / "reverse-text-tiny.yaml").read_text())
        model["metadata"] = {"name": name}
        model["spec"]["id"] = model_id
        return model

    def wait_for_condition(
        self, run: str, namespace: str, kind: str, reason: str, seconds: float, status: str = "False"
    ) -> Object:
        """The condition, once it has that reason. Fails with all conditions of the run otherwise."""
        seen: list[str] = []

        def look() -> Object | None:
            obj = self.kubectl.get("rlrun", run, namespace) or {}
            seen[:] = [describe(obj)]
            found = condition(obj, kind)
            return found if found and found["status"] == status and found["reason"] == reason else None

        try:
            return wait_for(f"{kind}={status} {reason} of {run}", look, seconds)
        except RuntimeError as error:
            pytest.fail(f"{error}; the run says:\n{seen[0] if seen else '-'}")


@pytest.fixture(scope="session")
def platform() -> Platform:
    """Chart, model and environments are in place."""
    kubectl, s3 = local_cluster()
    install_platform(kubectl, s3)
    for folder in sorted(BROKEN_ENVIRONMENTS.iterdir()):
        if (folder / "pyproject.toml").exists():
            push_environment(s3, folder)
    return Platform(kubectl, s3)


@pytest.fixture
def fresh_namespace(platform: Platform) -> Iterator[Callable[[str], str]]:
    """Makes namespaces of which nothing runs any more after the test."""
    made: list[str] = []

    def make(prefix: str) -> str:
        name = f"{prefix}-{secrets.token_hex(3)}"
        platform.kubectl.ensure_namespace(name)
        made.append(name)
        return name

    yield make
    for name in made:
        # Runs first, or their operator would put the pods back; the next test needs the cores, not a polite goodbye.
        platform.kubectl("delete", "rlruns", "--all", "-n", name, "--wait=false")
        platform.kubectl("delete", "namespace", name, "--wait=false")
        platform.kubectl("delete", "pods", "--all", "-n", name, "--grace-period=0", "--force", "--wait=false")
