"""Environments on gVisor: their code does not see the kernel of its node, and a run trains as without.

One run trains on the kernel of the node. Then the platform team names the RuntimeClass, and a run with the same spec
and one with hostile code train beside each other.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from demo.install import install_chart
from demo.kubectl import Object, wait_for
from demo.run_metrics import Line
from demo.watch import follow
from local_cluster.addons.gvisor import RUNTIME_CLASS
from tests.e2e.conftest import ON_POLICY, SECONDS, SEEDS, Platform
from tests.e2e.hostile_environment import ATTEMPTS, KERNEL, attempts_of, hostile_environment
from tests.e2e.runs import metrics_of, rollout_errors

SETTING = ("--set", f"runs.environments.runtimeClassName={RUNTIME_CLASS}")


@dataclass(frozen=True)
class Runs:
    """Finished runs, and the RuntimeClass of the environments of each while it trained."""

    done: dict[str, Object]
    classes: dict[str, str | None]


@pytest.fixture(scope="module")
def runs(platform: Platform, module_namespace: Callable[[str], str]) -> Iterator[Runs]:
    """`plain` on the node's kernel; `same` and `hostile` on gVisor."""
    namespace = module_namespace("gvisor")
    classes: dict[str, str | None] = {}

    def environment_of(name: str) -> Object | None:
        pods = platform.kubectl.list("pods", namespace, f"rlrun.dev/run={name},rlrun.dev/role=environment")
        return pods[0] if pods else None

    def start(name: str, **spec: object) -> None:
        platform.kubectl.apply(platform.run_object(name, namespace, **ON_POLICY | spec, seed=SEEDS[0]))
        pod = wait_for(f"the environment of {name}", partial(environment_of, name), SECONDS)
        classes[name] = pod["spec"].get("runtimeClassName")

    start("plain")
    done = {"plain": follow(platform.kubectl, "plain", namespace, SECONDS)}
    install_chart(platform.kubectl, platform.s3, print, *SETTING)
    start("same")
    start("hostile", env=[hostile_environment(platform)], maxSteps=2)
    done |= {name: follow(platform.kubectl, name, namespace, SECONDS) for name in ("hostile", "same")}
    yield Runs(done, classes)
    install_chart(platform.kubectl, platform.s3)


def rewards(lines: list[Line]) -> dict[int, float]:
    """The mean reward by step."""
    return {line["step"]: line["reward/mean"] for line in lines}


def test_user_code_sees_the_kernel_of_gvisor_and_is_refused_as_without(platform: Platform, runs: Runs) -> None:
    expected = dict.fromkeys((*ATTEMPTS, *KERNEL), 1.0)
    assert attempts_of(metrics_of(platform, runs.done["hostile"])) == expected
    assert rollout_errors(platform, runs.done["hostile"]) == []


def test_a_run_trains_as_on_the_kernel_of_its_node(platform: Platform, runs: Runs) -> None:
    assert runs.classes == {"plain": None, "same": RUNTIME_CLASS, "hostile": RUNTIME_CLASS}
    ours, theirs = (rewards(metrics_of(platform, runs.done[name])) for name in ("same", "plain"))
    assert list(ours) == list(range(1, ON_POLICY["maxSteps"] + 1))
    assert ours == theirs
    assert len(set(ours.values())) > 1, "nothing is learned, so equality shows nothing"
