"""A run with torch and vLLM learns. `make test` has this one; the other runs with ENGINES are in `make test-all`."""

from collections.abc import Callable

from demo.run_metrics import mean_of
from demo.watch import follow
from tests.e2e.conftest import ENGINES, SECONDS, Platform
from tests.e2e.runs import KL_LIMIT, metrics_of

STEPS = 12


def test_a_run_with_torch_and_vllm_learns(platform: Platform, fresh_namespace: Callable[[str], str]) -> None:
    namespace = fresh_namespace("learning")
    run = platform.run_object(
        "learner", namespace, model=ENGINES, maxSteps=STEPS, checkpoints={"interval": 6}, adapters={"interval": 6}
    )
    platform.kubectl.apply(run)

    done = follow(platform.kubectl, "learner", namespace, SECONDS)

    lines = metrics_of(platform, done)
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1))
    assert mean_of(lines[-4:], "reward/mean") > mean_of(lines[:4], "reward/mean")
    assert mean_of(lines, "mismatch_kl/all/mean") <= KL_LIMIT
    for kind in ("rlcheckpoints", "rladapters"):
        ready = [o for o in platform.kubectl.list(kind, namespace) if o["status"]["phase"] == "Ready"]
        assert {o["spec"]["step"] for o in ready} >= {6, STEPS}, kind
