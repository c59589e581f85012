"""Modules that decide, and the tests of each: those at the path that mirrors the module, and those named here."""

from pathlib import Path

from tests.support.source_tree import ROOT

OPERATOR, ORCHESTRATOR, TRAINER = (
    "operator/rlrun_operator/planning",
    "orchestrator_image/rlrun_orchestrator",
    "trainer_image/rlrun_trainer",
)

UNIT: dict[str, list[str]] = {
    f"{OPERATOR}/policies/running/deadlines.py": [],
    f"{OPERATOR}/policies/running/failure_policy.py": [],
    f"{OPERATOR}/policies/running/restart_backoff.py": [
        "tests/unit/rlrun_operator/planning/policies/running/test_failure_policy.py"
    ],
    f"{OPERATOR}/policies/running/attempts.py": [],
    f"{OPERATOR}/policies/ending/requeue.py": [],
    f"{OPERATOR}/policies/artifacts/artifact_objects.py": [
        "tests/unit/rlrun_operator/planning/plan/test_artifact_catalog.py"
    ],
    f"{OPERATOR}/plan/artifact_catalog.py": [
        "tests/unit/rlrun_operator/planning/policies/artifacts/test_artifact_objects.py"
    ],
    f"{OPERATOR}/diagnosis/crash_counter.py": [
        "tests/unit/rlrun_operator/planning/policies/running/test_failure_policy.py"
    ],
    f"{OPERATOR}/diagnosis/startup_failures.py": [],
    f"{OPERATOR}/diagnosis/run_outcome.py": [],
    f"{OPERATOR}/plan/checkpoint_references.py": ["tests/unit/rlrun_operator/planning/plan/test_artifact_catalog.py"],
    f"{OPERATOR}/plan/plan_builder.py": [],
    f"{OPERATOR}/policies/ending/deletion.py": [],
    f"{OPERATOR}/policies/ending/run_endings.py": [],
    f"{OPERATOR}/policies/queue/queue_order.py": [],
    f"{OPERATOR}/policies/queue/kueue_admission.py": [],
    "server/rlrun_server/signing/permissions.py": [],
    "server/rlrun_server/signing/user_permissions.py": [],
    "server/rlrun_server/signing/s3_request.py": [],
    "core/rlrun/garbage_collection/planner.py": [],
    "core/rlrun/storage/manifest.py": [],
    f"{ORCHESTRATOR}/rollouts/group_scheduler.py": ["tests/unit/rlrun_orchestrator/rollouts/test_group_tracker.py"],
    f"{ORCHESTRATOR}/rollouts/group_tracker.py": [],
    f"{ORCHESTRATOR}/data/group_filter.py": ["tests/unit/rlrun_orchestrator/data/test_groups.py"],
    f"{ORCHESTRATOR}/data/groups.py": [],
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
