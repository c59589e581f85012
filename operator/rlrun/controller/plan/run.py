"""The plan of one reconcile, as a numbered story. Pure: the same look at the same time gives the same plan."""

from datetime import datetime

from pydantic import ValidationError

from rlrun.controller.observed import Note, Obj, Observed, Plan, Ref
from rlrun.controller.plan.artifacts import ArtifactPlan, plan_artifacts
from rlrun.controller.plan.children import finished_workloads, leftovers, missing_children, workloads
from rlrun.controller.plan.deadlines import missed_deadline
from rlrun.controller.plan.deletion import plan_deletion
from rlrun.controller.plan.draft import Draft, seconds
from rlrun.controller.plan.events import transitions
from rlrun.controller.plan.failures import judge
from rlrun.controller.plan.outcome import Ending, find_ending
from rlrun.controller.plan.progress import has_begun, show_progress, show_warnings
from rlrun.controller.plan.readiness import CONDITION_OF, close_readiness, show_readiness, wanted_pods
from rlrun.controller.plan.restarts import count_restarts
from rlrun.controller.plan.troubles import current_pods, pod_trouble, role_of
from rlrun.controller.plan.ttl import time_to_live
from rlrun.controller.plan.validation import parse_spec, resolve_references
from rlrun.resources.children import children
from rlrun.resources.naming import FINALIZER, RunIdentity, attempt_of
from rlrun.resources.platform import resolve
from rlrun.resources.settings import Settings
from rlrun.schema.resolved import CONFIG_KEY, ResolvedRun
from rlrun.schema.retention import ArtifactPolicy
from rlrun.schema.run import RLRunSpec
from rlrun.schema.run_status import Phase
from rlrun.schema.wire import Problem

FINISH_SECONDS = 120.0
"""How long the end of a run waits for S3 to list its last artifacts."""
DEFAULT_START_DEADLINE = 3600


class Story:
    """The state of one reconcile while it is being planned."""

    def __init__(self, seen: Observed, settings: Settings, now: datetime) -> None:
        metadata = seen.run["metadata"]
        self.seen = seen
        self.settings = settings
        self.generation = int(metadata.get("generation") or 0)
        self.draft = Draft(seen.run.get("status"), self.generation, now)
        self.deletes: list[Ref] = []
        self.applies: list[Obj] = []
        self.notes: list[Note] = []
        self.artifacts: ArtifactPlan | None = None
        self.requeue: float | None = settings.poll_seconds
        self.delete_run = False

    @property
    def identity(self) -> RunIdentity:
        """Which attempt of which run the children belong to."""
        return RunIdentity(
            self.seen.namespace, self.seen.name, self.seen.uid, self.draft.status.attempt, self.generation
        )

    def result(self, spec: RLRunSpec | None) -> Plan:
        """The plan as it stands."""
        finalizers = self.seen.run["metadata"].get("finalizers") or []
        wants = spec is not None and spec.artifact_policy is ArtifactPolicy.delete
        found = self.artifacts or ArtifactPlan()
        status = self.draft.status
        return Plan(
            add_finalizer=wants and FINALIZER not in finalizers,
            s3_deletes=tuple(found.s3_deletes),
            deletes=(*found.deletes, *self.deletes),
            applies=(*found.applies, *self.applies),
            artifact_statuses=tuple(found.statuses),
            status=status,
            events=(*transitions(self.draft.old, status), *self.notes),
            remove_finalizer=spec is not None and not wants and FINALIZER in finalizers,
            delete_run=self.delete_run,
            requeue_after=self.requeue,
        )


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
        return _after_the_end(story, spec)
    if spec.stop:
        _finish(story, Phase.stopped, Problem(reason="Stopped", message="The run was stopped; its artifacts are kept."))
        return story.result(spec)
    if spec.suspend:
        return _suspended(story, spec)

    # 4. An attempt begins: the first one, or another one after a pause.
    _begin_attempt(story)
    refs, wait = leftovers(seen, draft.status.attempt)
    if wait:
        story.deletes += refs
        waiting = Problem(
            reason="WaitingForPreviousPods",
            message="pods of an earlier attempt, or of an earlier run, are still ending",
        )
        return _pending(story, spec, waiting)

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
        return _end(story, spec, ending)

    # 7. What is missing is made.
    desired = children(story.identity, settings, resolved, seen.s3_variables)
    if not seen.s3_variables:
        # The platform's Secret is gone for now: pods that run keep what they have.
        desired = [c for c in desired if c["kind"] != "Secret"]
    story.applies += missing_children(desired, seen)

    # 8. Restarts are counted, crashes judged.
    counted = count_restarts(draft.status.components, pods)
    draft.status.components = counted.components
    draft.status.restarts += counted.restarts
    troubles = [t for t in map(pod_trouble, current_pods(pods)) if t is not None]
    waiting_for = seen.poll.waiting_for if seen.poll else None
    show_readiness(draft, wanted_pods(spec, resolved.model), pods, troubles, waiting_for)
    verdict = judge(spec, draft.status.attempt, counted, troubles)
    if verdict is not None:
        story.applies.clear()
        if verdict.action == "fail":
            _finish(story, Phase.failed, verdict.problem)
        else:
            _restart(story, verdict.problem)
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
    missed = missed_deadline(draft, spec, blocking)
    if missed is not None:
        story.applies.clear()
        _finish(story, Phase.failed, missed)
        return story.result(spec)

    # 11. One word for people.
    draft.status.phase = Phase.running if draft.holds("Running") else Phase.pending
    draft.explain(blocking)
    _not_ended(draft)
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
        _finish(story, Phase.failed, problem)
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
    elif seen.artifacts_problem is not None:
        draft.set("ArtifactsListed", False, seen.artifacts_problem.reason, seen.artifacts_problem.message)


def _after_the_end(story: Story, spec: RLRunSpec) -> Plan:
    story.deletes += finished_workloads(story.seen)
    left = time_to_live(spec.ttl_seconds_after_finished, story.draft.status.completion_time, story.draft.now)
    story.delete_run = left is not None and left <= 0
    story.requeue = left if left is not None and left > 0 else None
    return story.result(spec)


def _suspended(story: Story, spec: RLRunSpec) -> Plan:
    draft, status = story.draft, story.draft.status
    story.deletes += workloads(story.seen)
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
    _not_ended(draft)
    story.requeue = None
    return story.result(spec)


def _begin_attempt(story: Story) -> None:
    status, now = story.draft.status, story.draft.now
    if status.attempt_start_time is not None:
        return
    if status.start_time is None:
        status.start_time = now
    else:
        status.attempt += 1
    status.attempt_start_time = now
    status.components = []
    story.draft.set("Running", False, "Starting")


def _restart(story: Story, problem: Problem) -> None:
    """Ends this attempt; the next reconcile begins another, when the pods are gone."""
    draft, status = story.draft, story.draft.status
    story.deletes += workloads(story.seen)
    status.past_active_seconds += int(seconds(status.attempt_start_time, draft.now))
    status.attempt_start_time = None
    status.phase = Phase.pending
    draft.set("Running", False, "Restarting", problem.message)
    draft.explain(Problem(reason="Restarting", message=f"a new attempt follows {problem.reason}: {problem.message}"))
    story.notes.append(Note("RunRestarting", f"{problem.reason}: {problem.message}", warning=True))


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
        _finish(story, Phase.failed, missed)
        return story.result(spec)
    if not draft.holds("Running"):
        draft.set("Running", False, problem.reason)
        for kind in CONDITION_OF.values():
            if draft.condition(kind) is None:
                draft.set(kind, False, "NotStarted")
    draft.status.phase = Phase.running if draft.holds("Running") else Phase.pending
    draft.explain(problem)
    _not_ended(draft)
    return story.result(spec)


def _end(story: Story, spec: RLRunSpec, ending: Ending) -> Plan:
    draft = story.draft
    if ending.last is not None:
        show_progress(draft, ending.last)
        show_warnings(draft, ending.last)
    if ending.problem is not None:
        _finish(story, Phase.failed, ending.problem)
        return story.result(spec)
    if story.artifacts is None and seconds(ending.finished_at, draft.now) < FINISH_SECONDS:
        draft.explain(Problem(reason="Finishing", message="waiting for S3 to list the last artifacts"))
        return story.result(spec)
    if draft.status.progress is not None and ending.last is None:
        draft.status.progress.step = draft.status.progress.max_steps or draft.status.progress.step
    if draft.status.progress is not None:
        draft.status.progress.eta_seconds = 0.0
    steps = draft.status.progress.step if draft.status.progress else spec.max_steps
    _finish(story, Phase.completed, Problem(reason="Completed", message=f"All {steps} steps are done."))
    return story.result(spec)


def _finish(story: Story, phase: Phase, problem: Problem) -> None:
    draft, status = story.draft, story.draft.status
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
    story.deletes += finished_workloads(story.seen)
    story.requeue = story.settings.poll_seconds


def _not_ended(draft: Draft) -> None:
    draft.set("Completed", False, "NotCompleted")
    draft.set("Failed", False, "NotFailed")


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
