"""The ways in which an attempt ends: done, failed, stopped, suspended, or restarted."""

from rlrun.controller.observed import Plan
from rlrun.controller.plan.backoff import still_waits, wait_before_restart
from rlrun.controller.plan.children import finished_workloads, workloads
from rlrun.controller.plan.draft import Draft
from rlrun.controller.plan.failures import Verdict
from rlrun.controller.plan.outcome import Ending
from rlrun.controller.plan.progress import show_progress, show_warnings
from rlrun.controller.plan.quiet import next_look
from rlrun.controller.plan.readiness import close_readiness
from rlrun.controller.plan.story import Story
from rlrun.controller.plan.ttl import time_to_live
from rlrun.kube.conditions import seconds
from rlrun.kube.events import EventRecord as Note
from rlrun.schema.run import RLRunSpec
from rlrun.schema.run_status import Phase
from rlrun.schema.wire import Problem

FINISH_SECONDS = 120.0
"""How long the end of a run waits for S3 to list its last artifacts."""


def after_the_end(story: Story, spec: RLRunSpec) -> Plan:
    """A finished run: its last checkpoint may still be on its way, and it may have a time to live."""
    seen, now = story.seen, story.draft.now
    story.remove(finished_workloads(seen))
    again = next_look(seen, now, story.settings.poll_seconds)
    left = time_to_live(spec.ttl_seconds_after_finished, story.draft.status.completion_time, now)
    # What pods still write gets its object before the run goes, unless that takes too long.
    story.delete_run = left is not None and left <= 0 and (again is None or left <= -FINISH_SECONDS)
    times = [again, left if left is not None and left > 0 else None]
    story.requeue = min((t for t in times if t is not None), default=None)
    return story.result(spec)


def suspended(story: Story, spec: RLRunSpec) -> Plan:
    """No pods until somebody wants them again; what the last ones write is still listed."""
    draft, status = story.draft, story.draft.status
    story.remove(workloads(story.seen))
    status.next_restart_time = None
    if status.attempt_start_time is not None:
        status.past_active_seconds += int(seconds(status.attempt_start_time, draft.now))
        status.attempt_start_time = None
    status.phase = Phase.suspended
    draft.explain(
        Problem(
            reason="Suspended", message="spec.suspend is true; set it to false to continue from the newest checkpoint"
        )
    )
    draft.set("Running", False, "Suspended")
    close_readiness(draft, "Suspended", None)
    not_ended(draft)
    story.requeue = next_look(story.seen, draft.now, story.settings.poll_seconds)
    return story.result(spec)


def restart(story: Story, verdict: Verdict) -> None:
    """Ends this attempt; another one begins when its wait is over and the pods are gone."""
    draft, status, problem = story.draft, story.draft.status, verdict.problem
    story.remove(workloads(story.seen))
    story.status_first = True
    due = wait_before_restart(draft)
    status.run_restarts += 1
    status.run_restarts_toward_max += verdict.toward_max
    status.restarts += 1
    status.past_active_seconds += int(seconds(status.attempt_start_time, draft.now))
    status.attempt_start_time = None
    status.phase = Phase.pending
    draft.set("Running", False, "Restarting", problem.message)
    close_readiness(draft, "Restarting", None)
    when = f"attempt {status.attempt + 1} begins at {due:%Y-%m-%dT%H:%M:%SZ}, in {status.restart_backoff_seconds} s"
    draft.explain(Problem(reason="Restarting", message=f"{when}, after {problem.reason}: {problem.message}"))
    story.notes.append(Note("RunRestarting", f"{when}, after {problem.reason}: {problem.message}", warning=True))
    story.requeue = min(story.settings.poll_seconds, still_waits(draft))


def waits_to_restart(story: Story, spec: RLRunSpec) -> Plan | None:
    """The plan while the next attempt waits to begin; None when none does. The status says already why it waits."""
    left = still_waits(story.draft)
    if left <= 0:
        return None
    story.remove(workloads(story.seen))
    story.draft.status.phase = Phase.pending
    not_ended(story.draft)
    story.requeue = min(story.settings.poll_seconds, left)
    return story.result(spec)


def end(story: Story, spec: RLRunSpec, ending: Ending) -> Plan:
    """The orchestrator has spoken its last word."""
    draft = story.draft
    if ending.last is not None:
        show_progress(draft, ending.last)
        show_warnings(draft, ending.last)
    if ending.problem is not None:
        finish(story, Phase.failed, ending.problem)
        return story.result(spec)
    if story.artifacts is None and seconds(ending.finished_at, draft.now) < FINISH_SECONDS:
        draft.explain(Problem(reason="Finishing", message="waiting for S3 to list the last artifacts"))
        return story.result(spec)
    if draft.status.progress is not None and ending.last is None:
        draft.status.progress.step = draft.status.progress.max_steps or draft.status.progress.step
    if draft.status.progress is not None:
        draft.status.progress.eta_seconds = 0.0
    steps = draft.status.progress.step if draft.status.progress else spec.max_steps
    finish(story, Phase.completed, Problem(reason="Completed", message=f"All {steps} steps are done."))
    return story.result(spec)


def finish(story: Story, phase: Phase, problem: Problem) -> None:
    """The run never runs again."""
    draft, status = story.draft, story.draft.status
    status.next_restart_time = None
    status.phase = phase
    status.completion_time = status.completion_time or draft.now
    if status.attempt_start_time is not None:
        status.past_active_seconds += int(seconds(status.attempt_start_time, draft.now))
        status.attempt_start_time = None
    draft.explain(problem)
    draft.set("Running", False, phase.value, problem.message if phase is not Phase.completed else "")
    close_readiness(draft, "RunFinished", problem if phase is Phase.failed else None)
    draft.set("Completed", phase is Phase.completed, problem.reason, problem.message)
    failed = phase is Phase.failed
    draft.set("Failed", failed, problem.reason if failed else "NotFailed", problem.message if failed else "")
    story.remove(finished_workloads(story.seen))
    story.status_first = failed
    story.requeue = story.settings.poll_seconds


def not_ended(draft: Draft) -> None:
    """Says so in the two conditions that tools wait for."""
    draft.set("Completed", False, "NotCompleted")
    draft.set("Failed", False, "NotFailed")
