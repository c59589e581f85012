"""One condition per role: ready, or what it waits for."""

from collections.abc import Mapping, Sequence

from rlrun.controller.plan.draft import Draft
from rlrun.controller.plan.troubles import Trouble
from rlrun.kube.objects import Obj
from rlrun.kube.pods import component_of, is_ready
from rlrun.resources.environment import environment_entries
from rlrun.schema.model import RLModelSpec
from rlrun.schema.run import RLRunSpec
from rlrun.schema.wire import Problem

CONDITION_OF = {
    "trainer": "TrainerReady",
    "inference": "InferenceReady",
    "environment": "EnvironmentsReady",
    "orchestrator": "OrchestratorReady",
}


def wanted_pods(spec: RLRunSpec, model: RLModelSpec) -> dict[str, dict[str, int]]:
    """Pods that each component of each role should have."""
    return {
        "trainer": {"trainer": model.trainer.nodes},
        "inference": {"inference": model.inference.replicas},
        "environment": {item.component: 1 for item in environment_entries(spec)},
        "orchestrator": {"orchestrator": 1},
    }


def role_blamed(problem: Problem) -> str:
    """The role that a problem is about, by its reason: `EnvironmentLoadFailed`, `WaitingForTrainer`, ..."""
    for role, word in (("environment", "Environment"), ("trainer", "Trainer"), ("inference", "Inference")):
        if word in problem.reason:
            return role
    return "orchestrator"


def show_readiness(
    draft: Draft,
    wanted: Mapping[str, Mapping[str, int]],
    pods: Sequence[Obj],
    troubles: Sequence[Trouble],
    waiting_for: Problem | None,
) -> None:
    """Sets the four conditions. Trouble of a pod goes first: it is nearer to the cause than what others wait for."""
    for role, components in wanted.items():
        kind = CONDITION_OF[role]
        missing = {
            name: count - ready
            for name, count in components.items()
            if (ready := sum(is_ready(p) for p in pods if component_of(p) == name)) < count
        }
        trouble = next((t for t in troubles if t.role == role), None)
        if trouble:
            draft.set(kind, False, trouble.problem.reason, trouble.problem.message)
        elif waiting_for and role_blamed(waiting_for) == role:
            draft.set(kind, False, waiting_for.reason, waiting_for.message)
        elif missing:
            names = ", ".join(f"{name} ({count})" if count > 1 else name for name, count in sorted(missing.items()))
            draft.set(kind, False, "Starting", f"waiting for pods to become ready: {names}")
        else:
            draft.set(kind, True, "Ready")


def _only_waited(reason: str | None) -> bool:
    return reason == "Starting" or (reason or "").startswith("WaitingFor")


def close_readiness(draft: Draft, reason: str, problem: Problem | None) -> None:
    """For a run without pods: what was in order is now over, what was broken stays readable."""
    for role, kind in CONDITION_OF.items():
        found = draft.condition(kind)
        if problem and role_blamed(problem) == role and problem.reason != "OrchestratorFailed":
            draft.set(kind, False, problem.reason, problem.message)
        elif found is None or found.status.value == "True" or _only_waited(found.reason):
            draft.set(kind, False, reason)
