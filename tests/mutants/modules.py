"""Modules that decide, and the tests of each: those at the path that mirrors the module, and those named here."""

from pathlib import Path

from tests.support.source_tree import ROOT

OPERATOR, ORCHESTRATOR, TRAINER = (
    "operator/rlrun_operator/planning",
    "orchestrator_image/rlrun_orchestrator",
    "trainer_image/rlrun_trainer",
)

UNIT: dict[str, list[str]] = {
    f"{OPERATOR}/running.py": ["tests/unit/rlrun_operator/planning/test_restarts.py"],
    f"{OPERATOR}/restarts.py": [],
    f"{OPERATOR}/ending.py": [],
    f"{OPERATOR}/deletion.py": [],
    f"{OPERATOR}/artifacts.py": ["tests/unit/rlrun_operator/planning/test_artifact_catalog.py"],
    f"{OPERATOR}/artifact_catalog.py": ["tests/unit/rlrun_operator/planning/test_artifacts.py"],
    f"{OPERATOR}/pod_failures.py": ["tests/unit/rlrun_operator/planning/test_restarts.py"],
    f"{OPERATOR}/plan_run.py": [],
    f"{OPERATOR}/queue.py": [],
    "operator/rlrun_operator/serving/shared_planner.py": [
        "tests/unit/rlrun_operator/integration/test_shared_pools.py",
    ],
    f"{OPERATOR}/kueue_admission.py": [],
    "server/rlrun_server/signing/permissions.py": [],
    "server/rlrun_server/signing/user_permissions.py": [],
    "server/rlrun_server/signing/s3_request.py": [],
    "core/rlrun/garbage_collection/planner.py": [],
    "core/rlrun/storage/manifest.py": [],
    f"{ORCHESTRATOR}/rollouts/group_scheduler.py": ["tests/unit/rlrun_orchestrator/rollouts/test_group_tracker.py"],
    f"{ORCHESTRATOR}/rollouts/group_tracker.py": [],
    f"{ORCHESTRATOR}/data/group_filter.py": ["tests/unit/rlrun_orchestrator/data/test_scoring.py"],
    f"{ORCHESTRATOR}/data/groups.py": [],
    f"{ORCHESTRATOR}/data/scoring.py": [],
    f"{ORCHESTRATOR}/data/example_buffer.py": [],
    f"{ORCHESTRATOR}/data/schedule.py": [],
    f"{ORCHESTRATOR}/storage/recovery.py": [],
    f"{TRAINER}/sessions/batch_validation.py": [],
    f"{TRAINER}/optimization/learning_rate.py": [],
}
"""Further tests by module, in this environment."""
IMAGE: dict[str, list[str]] = {
    f"{TRAINER}/optimization/policy_loss.py": ["tests/image/rlrun_trainer/optimization/test_objective.py"],
    f"{TRAINER}/optimization/objective.py": [
        "tests/image/rlrun_trainer/optimization/test_kl_penalty.py",
        "tests/image/rlrun_trainer/optimization/test_distillation.py",
        "tests/image/rlrun_trainer/optimization/test_sampling_distribution.py",
        "tests/image/rlrun_trainer/optimization/test_policy_loss.py",
    ],
    f"{TRAINER}/optimization/packing.py": [],
    f"{TRAINER}/optimization/step.py": [
        "tests/image/rlrun_trainer/optimization/test_distillation.py",
        "tests/image/rlrun_trainer/optimization/test_policy_loss.py",
        "tests/image/rlrun_trainer/optimization/test_objective.py",
        "tests/image/rlrun_trainer/optimization/test_kl_penalty.py",
    ],
    f"{TRAINER}/optimization/kl_penalty.py": [],
}
"""Further tests by module, inside the trainer image."""
FUNCTIONS: dict[str, tuple[str, ...]] = {
    f"{TRAINER}/optimization/step.py": ("_learning_metrics", "_finite"),
}
"""Functions that decide, in modules that do something else besides: only these are changed. The rest of a step moves
tensors between devices and processes, which one process without a GPU does not show.
"""


def suite_of(module: str) -> list[str]:
    """Return the test files of a module, relative to the repository."""
    level, further = ("unit", UNIT[module]) if module in UNIT else ("image", IMAGE[module])
    inside = Path(*Path(module).parts[1:])
    mirror = Path("tests", level, inside.parent, f"test_{inside.name}").as_posix()
    return [test for test in dict.fromkeys([mirror, *further]) if (ROOT / test).is_file()]
