"""User code that attacks its node and its run: its run ends with a reason, and its neighbour's completes.

What the pods' own processes and the kubelet hold is seen here. The network of this cluster enforces no policies:
what needs one (port 53, the metadata address, S3 without a key) is tested in tests/policies.
"""

import io
import zipfile
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from rlrun.storage.layout import environment_package

from demo.install import BUCKET
from demo.kubectl import Object, condition, wait_for
from demo.watch import follow
from tests.e2e.conftest import NO_ENGINE, SECONDS, Platform
from tests.e2e.runs import lines_of, metrics_of

# The fork bomb and the gigabytes take the cores from whatever else is measured or waited for.
pytestmark = pytest.mark.alone

WRECKER = "tests/wrecker"
PLANTED = "planted"
TOO_MANY = {"EnvironmentTooManyProcesses", "EnvironmentOutOfMemory"}
"""Reasons of a fork bomb's end: the server's limit, or the memory of its container, whichever is reached first."""
WITHOUT_ENGINE: dict[str, tuple[dict[str, Any], set[str]]] = {
    "bomber": ({"id": WRECKER, "args": {"attack": "fork_bomb"}}, TOO_MANY),
    "filler": ({"id": WRECKER, "args": {"attack": "fill_disk"}}, {"EnvironmentOutOfDisk"}),
    "planter": ({"id": f"tests/{PLANTED}"}, {"EnvironmentInstallFailed"}),
}
"""Environments that attack before the run would need its engine, and the reasons that end their runs."""
LIARS = [{"id": WRECKER, "name": attack, "args": {"attack": attack}} for attack in ("forged", "flood")]
ROLLOUTS = 128
GROUPS_IN_A_BATCH = 16
LIARS_END = {"EmptyBatches", "EnvironmentOutOfMemory"}
NEIGHBOUR_STEPS = 3


def planted_wheel() -> bytes:
    """A wheel with a file that pip would have to write outside of the environment's folder, and with a link."""
    info = f"{PLANTED}-1.0.0.dist-info"
    files = {
        f"{PLANTED}.py": "",
        "../../../tmp/planted.py": "raise SystemExit",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {PLANTED}\nVersion: 1.0.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return data.getvalue()


@pytest.fixture(scope="module")
def attacks(platform: Platform, module_namespace: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Namespaces of the attackers and of their neighbour, all of them started."""
    folder = environment_package(BUCKET, "", "tests", PLANTED) / "1.0.0"
    platform.s3.store().put_bytes(folder / f"{PLANTED}-1.0.0-py3-none-any.whl", planted_wheel())
    ours, theirs = module_namespace("hostile"), module_namespace("peaceful")
    model = platform.model_object("no-engine-hostile", "tests/no-engine-hostile")
    model["spec"]["inference"] |= NO_ENGINE
    platform.kubectl.apply(model)
    platform.kubectl.apply(platform.run_object("neighbour", theirs, maxSteps=NEIGHBOUR_STEPS))
    small: dict[str, Any] = {
        "infrastructure": {"computeSize": "S"},
        "maxRestarts": 0,
        "startDeadlineSeconds": 600,
        "eval": None,
    }
    for name, (env, _) in WITHOUT_ENGINE.items():
        platform.kubectl.apply(platform.run_object(name, ours, model=model["spec"]["id"], env=[env], **small))
    platform.kubectl.apply(platform.run_object("liar", ours, env=LIARS, maxSteps=50, batchSize=ROLLOUTS, **small))
    yield ours, theirs
    platform.kubectl("delete", "rlmodel", "no-engine-hostile")


def end_of(platform: Platform, name: str, namespace: str) -> Object:
    """The run's condition Failed, once it has failed."""

    def failed() -> Object | None:
        run = platform.kubectl.get("rlrun", name, namespace) or {}
        found = condition(run, "Failed")
        return found if found and found["status"] == "True" else None

    found: Object = wait_for(f"the failure of {name}", failed, SECONDS)
    print(f"{name}: {found['reason']}: {found['message']}")
    return found


@pytest.mark.parametrize("name", WITHOUT_ENGINE)
def test_an_attack_on_the_pod_ends_the_attackers_run(platform: Platform, attacks: tuple[str, str], name: str) -> None:
    found = end_of(platform, name, attacks[0])
    assert any(reason in (found["reason"], *found["message"].split(": ")) for reason in WITHOUT_ENGINE[name][1]), found


def test_forged_results_and_a_gigabyte_train_nothing(platform: Platform, attacks: tuple[str, str]) -> None:
    """Two batches of them, or the end of the run. After ten it fails, which takes minutes of pauses."""

    def enough() -> Object | None:
        run = platform.kubectl.get("rlrun", "liar", attacks[0]) or {}
        groups = run.get("status", {}).get("groups") or {}
        is_failed = run.get("status", {}).get("phase") == "Failed"
        return run if is_failed or groups.get("errored", 0) >= 2 * GROUPS_IN_A_BATCH else None

    status = (run := wait_for("two batches of lies", enough, SECONDS))["status"]
    print(f"liar: {status.get('phase')} {status.get('reason')}: {status.get('message')}")
    assert status["groups"]["trained"] == 0
    assert status["progress"]["step"] == 0
    assert metrics_of(platform, run) == []
    if status["phase"] == "Failed":
        assert status["reason"] in LIARS_END


def test_the_neighbour_completes(platform: Platform, attacks: tuple[str, str]) -> None:
    done = follow(platform.kubectl, "neighbour", attacks[1], SECONDS)
    assert [line["step"] for line in metrics_of(platform, done)] == list(range(1, NEIGHBOUR_STEPS + 1))
    assert lines_of(platform, done)
