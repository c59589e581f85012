"""Runs on the local cluster. Bring it up first (`make test-e2e` does).

Operator, rlrun-server, orchestrator, sidecars, environments and S3 are real in every run. Trainer and engine are stubs
(tests/support/images) unless a test is about what torch and vLLM compute: those tests name the model ENGINES and are
marked `extended`, and so are the repetitions with ENGINES of tests that take the fixture `model`.

Tests share runs where they ask different questions of the same one, start together what they wait for, and go file by
file to two workers, so that one computes while the other waits. What changes the platform itself is marked
`alone`, and follows when both lanes are empty.
"""

import copy
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from demo.cluster import local_cluster
from demo.install import EXAMPLES, S3Access, install_platform, push_environment
from demo.kubectl import Kubectl, Object, condition, wait_for
from demo.watch import describe, follow
from tests.e2e.stranger import ask_as_stranger
from tests.support.lanes import Together
from tests.support.s3_key_search import KeyHolders, find_s3_key
from tests.support.sharing import folder_of_all_workers, shared

NEIGHBOURS = {"test_determinism.py", "test_kubectl_view.py", "test_tenancy.py"}
"""Files that share two runs, and so a worker."""
LONGEST = (
    "test_lifecycle.py",
    "test_tinker.py",
    "test_shared_pools.py",
    "test_guides.py",
    "test_serving.py",
    "test_environments.py",
    "test_learning.py",
)
"""Files to begin with, so that no worker is left with a long one at the end."""
BROKEN_ENVIRONMENTS = Path(__file__).parent / "environments"
SECONDS = 600.0
"""For a run to be over. Other runs may want the cores, so this says when to give up and nothing about speed."""
ON_POLICY: dict[str, Any] = {
    "maxSteps": 8,
    "batchSize": 64,
    "maxAsyncLevel": 0,
    "oversamplingFactor": 1.0,
    "checkpoints": {"interval": 3},
}
"""With one seed, such a run is the same run again."""
SEEDS = (11, 12)
NO_ENGINE = {"image": "rlrun-nowhere/inference:none"}
"""Changes of a model's `inference` for runs that end before they would ask their engine."""
STUBS = "rlrun/stub-tiny"
"""Model whose trainer and engine are the stubs."""
SLOW_STUBS = "rlrun/stub-slow"
"""STUBS whose engine takes a tenth of a second for a token, and no CPU: a step takes 2.4 s at least."""
ENGINES = "rlrun/reverse-text-tiny"
"""Model that torch trains and vLLM serves."""
SMALL_BATCH = 32
"""Rollouts of a step of stubs: they learn nothing from more, and environments compute for each."""
STUB_MODEL = Path(__file__).parents[1] / "support" / "images" / "stub-model.yaml"

LAST = "test_permissions.py"
"""File of what looks back at the whole level."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the LONGEST files and put the file LAST at the end."""
    first = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (item.path.name == LAST, first.get(item.path.name, len(first))))


def lane(nodeid: str) -> str:
    """Return the lane of a test: its file, or what several files share."""
    name = Path(nodeid.partition("::")[0]).name
    return "neighbours" if name in NEIGHBOURS else name


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Together:
    """Give each lane to a worker, which takes the next when it is through."""
    config.option.loadscopereorder = False  # else lanes with most tests come first, not the LONGEST
    return Together(config, log, lane)


@dataclass(frozen=True)
class Platform:
    """The cluster with everything installed that a platform team installs."""

    kubectl: Kubectl
    s3: S3Access

    def run_object(self, name: str, namespace: str, **spec: Any) -> Object:
        """The example's RLRun for STUBS, with other values at the top of its spec; None leaves a field out."""
        run: Object = yaml.safe_load((EXAMPLES / "reverse-text.yaml").read_text())
        run["metadata"] = {"name": name, "namespace": namespace}
        run["spec"]["model"] = spec.get("model", STUBS)
        if run["spec"]["model"] != ENGINES:
            run["spec"]["batchSize"] = SMALL_BATCH
        run["spec"] = {
            field: value for field, value in (copy.deepcopy(run["spec"]) | spec).items() if value is not None
        }
        return run

    def model_object(self, name: str, model_id: str, like: str = STUBS) -> Object:
        """The RLModel `like` under another name and id, for tests that change it."""
        file = STUB_MODEL if like == STUBS else EXAMPLES / "models" / "reverse-text-tiny.yaml"
        model: Object = yaml.safe_load(file.read_text())
        model["metadata"] = {"name": name}
        model["spec"]["id"] = model_id
        return model

    def slowed(self, model_id: str) -> str:
        """Return a model like STUBS or ENGINES whose steps leave time to be watched. vLLM's steps are slow enough."""
        if model_id != STUBS:
            return model_id
        model = self.model_object("stub-slow", SLOW_STUBS)
        model["spec"]["inference"]["env"] = [{"name": "STUB_ENGINE_TOKEN_SECONDS", "value": "0.1"}]
        self.kubectl.apply(model)
        return SLOW_STUBS

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
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """The cluster with chart, model and environments, installed once for all workers."""
    kubectl, s3 = local_cluster()

    @contextmanager
    def install() -> Iterator[str]:
        install_platform(kubectl, s3, print, "--set", "tinker.enabled=true,tinker.replicas=1")
        kubectl.apply(yaml.safe_load(STUB_MODEL.read_text()))
        for folder in sorted(BROKEN_ENVIRONMENTS.iterdir()):
            if (folder / "pyproject.toml").exists():
                push_environment(kubectl, folder)
        yield "installed"

    with shared(folder_of_all_workers(tmp_path_factory), "platform", install):
        yield Platform(kubectl, s3)


@pytest.fixture(scope="session", params=[STUBS, pytest.param(ENGINES, marks=pytest.mark.extended)])
def model(request: pytest.FixtureRequest) -> str:
    """STUBS; in `make test-all` ENGINES as well."""
    return str(request.param)


@pytest.fixture
def fresh_namespace(platform: Platform) -> Iterator[Callable[[str], str]]:
    """Makes namespaces of which nothing runs after the test."""
    with _namespaces(platform) as make:
        yield make


@pytest.fixture(scope="module")
def module_namespace(platform: Platform) -> Iterator[Callable[[str], str]]:
    """Makes namespaces for runs that the tests of a module share."""
    with _namespaces(platform) as make:
        yield make


@dataclass(frozen=True)
class Neighbours:
    """Two finished runs of one name, each in a namespace and with a seed of its own."""

    runs: list[Object]
    """As they were in the end; those of SEEDS, in this order."""
    side_by_side: bool
    """Whether both were seen running at the same time."""
    answers: dict[str, int]
    """HTTP status of each request that an environment of the first run sent to a process of the second."""
    s3_key: KeyHolders | None
    """Objects with the S3 key as both runs trained."""


@pytest.fixture(scope="session")
def neighbours(platform: Platform, model: str) -> Iterator[Neighbours]:
    """Two on-policy runs that trained at the same time; tests may look at them and start others beside them."""
    with _namespaces(platform) as make:
        namespaces = [make("team-a"), make("team-b")]
        slowed = platform.slowed(model)
        for namespace, seed in zip(namespaces, SEEDS, strict=True):
            run = platform.run_object("same-name", namespace, **ON_POLICY, model=slowed, seed=seed)
            platform.kubectl.apply(run)
        both_running: list[bool] = []
        answers: dict[str, int] = {}
        holders: list[KeyHolders] = []

        def look(_: object) -> None:
            seen = [platform.kubectl.get("rlrun", "same-name", namespace) or {} for namespace in namespaces]
            both_running.append(all(run.get("status", {}).get("phase") == "Running" for run in seen))
            if both_running[-1] and not answers:
                answers.update(ask_as_stranger(platform.kubectl, "same-name", *namespaces))
                holders.append(find_s3_key(platform.kubectl, platform.s3))

        runs = [follow(platform.kubectl, "same-name", namespace, SECONDS, each=look) for namespace in namespaces]
        yield Neighbours(runs, any(both_running), answers, next(iter(holders), None))


@contextmanager
def _namespaces(platform: Platform) -> Iterator[Callable[[str], str]]:
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
