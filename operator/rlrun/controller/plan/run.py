"""The plan of one reconcile, as a numbered story. Pure: the same look at the same time gives the same plan."""

from datetime import datetime

from pydantic import ValidationError

from rlrun.controller.observed import Observed, Plan
from rlrun.controller.plan.artifacts import plan_artifacts
from rlrun.controller.plan.children import leftovers, missing_children, nudges
from rlrun.controller.plan.deadlines import missed_deadline
from rlrun.controller.plan.deletion import plan_deletion
from rlrun.controller.plan.draft import Draft
from rlrun.controller.plan.ending import after_the_end, end, finish, not_ended, restart, suspended, waits_to_restart
from rlrun.controller.plan.failures import forgive, judge
from rlrun.controller.plan.logs import logs_of_crashes
from rlrun.controller.plan.obstacles import note_obstacles, overdue
from rlrun.controller.plan.outcome import find_ending
from rlrun.controller.plan.progress import has_begun, show_progress, show_warnings
from rlrun.controller.plan.readiness import CONDITION_OF, show_readiness, wanted_pods
from rlrun.controller.plan.restarts import count_restarts
from rlrun.controller.plan.story import Story
from rlrun.controller.plan.troubles import pod_trouble
from rlrun.controller.plan.validation import parse_spec, resolve_references
from rlrun.kube.conditions import seconds
from rlrun.kube.objects import Obj, attempt_of
from rlrun.kube.pods import relevant_pods as current_pods
from rlrun.kube.pods import role_of
from rlrun.resources.children import children
from rlrun.resources.platform import resolve
from rlrun.resources.settings import Settings
from rlrun.schema.resolved import CONFIG_KEY, ResolvedRun
from rlrun.schema.run import RLRunSpec
from rlrun.schema.run_status import Phase
from rlrun.schema.wire import Problem

DEFAULT_START_DEADLINE = 3600


def plan_run(seen: Observed, settings: Settings, now: datetime) -> Plan:
    """What to do about a run, given one look at it."""
    # 1. A run that is being deleted needs nothing but that.
    if seen.run["metadata"].get("deletionTimestamp"):
        return plan_deletion(seen, settings, now)
    story = Story(seen, settings, now)
    draft = story.draft
    spec = parse_spec(seen.run)
    if isinstance(spec, Problem):
        return _invalid(story, spec)

    # 2. The catalogue follows S3, whatever the run does.
    _list_artifacts(story, spec)

    # 3. A finished run stays finished.
    if draft.status.phase is not None and draft.status.phase.finished:
        return after_the_end(story, spec)
    if spec.stop:
        finish(story, Phase.stopped, Problem(reason="Stopped", message="The run was stopped; its artifacts are kept."))
        return story.result(spec)
    if spec.suspend:
        return suspended(story, spec)

    # 4. An attempt begins: the first one, or another one after a pause.
    waiting = waits_to_restart(story, spec)
    if waiting is not None:
        return waiting
    _begin_attempt(story)
    refs, wait = leftovers(seen, draft.status.attempt)
    if wait:
        story.deletes += refs
        previous = Problem(
            reason="WaitingForPreviousPods",
            message="pods of an earlier attempt, or of an earlier run, are still ending",
        )
        return _pending(story, spec, previous)

    # 5. Everything the attempt needs is resolved once and then frozen in its ConfigMap.
    resolved = _resolved(story, spec)
    if isinstance(resolved, Problem):
        draft.set("Validated", False, resolved.reason, resolved.message)
        return _pending(story, spec, resolved)
    draft.set("Validated", True, "Valid")

    # 6. The orchestrator's last word ends the run.
    pods = seen.pods_of(draft.status.attempt)
    ending = find_ending(_job(seen, draft.status.attempt), pods)
    if ending is not None:
        return end(story, spec, ending)

    # 7. What is missing is made.
    desired = children(story.identity, settings, resolved, seen.s3_variables)
    if not seen.s3_variables:
        # The platform's Secret is gone for now: pods that run keep what they have.
        desired = [c for c in desired if c["kind"] != "Secret"]
    story.applies += missing_children(desired, seen)
    story.nudges += nudges(story.applies, seen)

    # 8. Restarts are counted, crashes judged.
    counted = forgive(spec, count_restarts(draft.status.components, pods))
    draft.status.components = note_obstacles(counted.components, pods, draft.now)
    draft.status.restarts += counted.restarts
    story.logs += logs_of_crashes(story.layout, draft.status.attempt, counted.crashes)
    current = current_pods(pods)
    troubles = [t for t in map(pod_trouble, current) if t is not None]
    waiting_for = seen.poll.waiting_for if seen.poll else None
    show_readiness(draft, wanted_pods(spec, resolved.model), pods, troubles, waiting_for)
    verdict = judge(spec, draft.status.run_restarts_toward_max, counted, troubles)
    if verdict is not None:
        story.write_nothing()
        if verdict.action == "fail":
            finish(story, Phase.failed, verdict.problem)
        else:
            restart(story, verdict)
        return story.result(spec)

    # 9. Progress.
    if seen.poll is not None:
        show_progress(draft, seen.poll)
        show_warnings(draft, seen.poll)
        if has_begun(seen.poll):
            draft.set("Running", True, "Running")
    if not draft.holds("Running"):
        draft.set("Running", False, "Starting")
    blocking = _blocking(draft)

    # 10. Deadlines.
    missed = overdue(spec.failure_policy, draft.status.components, current, draft.now)
    missed = missed or missed_deadline(draft, spec, blocking)
    if missed is not None:
        story.write_nothing()
        finish(story, Phase.failed, missed)
        return story.result(spec)

    # 11. One word for people.
    draft.status.phase = Phase.running if draft.holds("Running") else Phase.pending
    draft.explain(blocking)
    not_ended(draft)
    return story.result(spec)


def _job(seen: Observed, attempt: int) -> Obj | None:
    jobs = (j for j in seen.own("Job") if role_of(j) == "orchestrator")
    return next((j for j in jobs if attempt_of(j) == attempt), None)


def _invalid(story: Story, problem: Problem) -> Plan:
    draft = story.draft
    draft.set("Validated", False, problem.reason, problem.message)
    phase = draft.status.phase
    story.requeue = None
    if phase is not None and (phase.finished or phase is Phase.running):
        # An older operator took this spec: what runs is left alone.
        return story.result(None)
    _begin_attempt(story)
    limit = story.seen.run.get("spec", {}).get("startDeadlineSeconds")
    limit = limit if isinstance(limit, int) and limit > 0 else DEFAULT_START_DEADLINE
    waited = seconds(draft.status.attempt_start_time, draft.now)
    if waited >= limit:
        finish(story, Phase.failed, problem)
    else:
        draft.status.phase = Phase.pending
        draft.explain(problem)
        story.requeue = limit - waited
    return story.result(None)


def _list_artifacts(story: Story, spec: RLRunSpec) -> None:
    draft, seen = story.draft, story.seen
    story.artifacts = plan_artifacts(seen, spec)
    if story.artifacts is not None:
        draft.status.checkpoints = story.artifacts.checkpoints
        draft.status.adapters = story.artifacts.adapters
        draft.status.last_checkpoint = story.artifacts.checkpoints[0].name if story.artifacts.checkpoints else None
        draft.set("ArtifactsListed", True, "Listed")
        _show_deletions(draft, story.artifacts.not_deleted)
    elif seen.artifacts_problem is not None:
        draft.set("ArtifactsListed", False, seen.artifacts_problem.reason, seen.artifacts_problem.message)


def _show_deletions(draft: Draft, problem: Problem | None) -> None:
    if problem is not None:
        message = f"retention cannot delete old artifacts, and tries again and again: {problem.message}"
        draft.set("ArtifactsCleanedUp", False, problem.reason, message)
    elif draft.condition("ArtifactsCleanedUp"):
        draft.set("ArtifactsCleanedUp", True, "CleanedUp")


def _begin_attempt(story: Story) -> None:
    status, now = story.draft.status, story.draft.now
    if status.attempt_start_time is not None:
        return
    if status.start_time is None:
        status.start_time = now
    else:
        status.attempt += 1
    status.attempt_start_time = now
    status.next_restart_time = None
    status.components = []
    story.draft.set("Running", False, "Starting")


def _resolved(story: Story, spec: RLRunSpec) -> ResolvedRun | Problem:
    seen, identity = story.seen, story.identity
    frozen = frozen_config(seen, identity.attempt)
    if frozen is not None:
        return resolve(identity, story.settings, _frozen_interval(spec, frozen), frozen.model, frozen.warm_start_from)
    found = resolve_references(spec, seen)
    if isinstance(found, Problem):
        return found
    return resolve(identity, story.settings, spec, found.model, found.warm_start_from)


def frozen_config(seen: Observed, attempt: int) -> ResolvedRun | None:
    """What the attempt was resolved to; None when it has no (readable) configuration yet."""
    for obj in seen.own("ConfigMap"):
        if attempt_of(obj) != attempt:
            continue
        try:
            return ResolvedRun.model_validate_json((obj.get("data") or {}).get(CONFIG_KEY, ""))
        except ValidationError:
            return None
    return None


def _frozen_interval(spec: RLRunSpec, frozen: ResolvedRun) -> RLRunSpec:
    # The platform's default may have changed since; a run keeps the one it began with.
    if spec.checkpoints.interval is not None:
        return spec
    checkpoints = spec.checkpoints.model_copy(update={"interval": frozen.spec.checkpoints.interval})
    return spec.model_copy(update={"checkpoints": checkpoints})


def _pending(story: Story, spec: RLRunSpec, problem: Problem) -> Plan:
    draft = story.draft
    missed = missed_deadline(draft, spec, problem)
    if missed is not None:
        finish(story, Phase.failed, missed)
        return story.result(spec)
    if not draft.holds("Running"):
        draft.set("Running", False, problem.reason)
        for kind in CONDITION_OF.values():
            if draft.condition(kind) is None:
                draft.set(kind, False, "NotStarted")
    draft.status.phase = Phase.running if draft.holds("Running") else Phase.pending
    draft.explain(problem)
    not_ended(draft)
    return story.result(spec)


def _blocking(draft: Draft) -> Problem | None:
    """The first thing that is not in order, in the order in which a run starts."""
    for kind in ("Validated", *CONDITION_OF.values()):
        found = draft.condition(kind)
        if found is not None and found.status.value != "True" and found.reason not in ("NotStarted", "Starting"):
            return Problem(reason=found.reason, message=found.message)
    for kind in CONDITION_OF.values():
        found = draft.condition(kind)
        if found is not None and found.reason == "Starting" and not draft.holds("Running"):
            return Problem(reason="Starting", message=f"{kind}: {found.message}")
    return None
