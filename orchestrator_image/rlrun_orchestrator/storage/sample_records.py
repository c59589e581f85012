"""Records of a step's groups, stored in one S3 object for each `StepRollouts.use`. Encoding takes a lot of CPU time, so
it runs in a thread.
"""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, compress, islice
from typing import Any, TypeVar

from rlrun.storage.layout import file_name, rollouts_name
from rlrun.storage.samples.object_file import encode_samples
from rlrun.storage.samples.record import (
    LogprobSummary,
    SampleRecord,
    SampleSplit,
    SampleStatus,
    Timings,
    TokenCounts,
    finite_or_none,
    messages_of,
)
from rlrun.storage.samples.redaction import redact
from rlrun.storage.samples.summary import StepSamples, summarize

from rlrun_orchestrator.data.batch_metrics import finite
from rlrun_orchestrator.data.group_filter import FilterReason
from rlrun_orchestrator.data.groups import Group, GroupState, Rollout
from rlrun_orchestrator.data.trajectories import TokenSequence

MAX_METRICS = 64
MAX_FUNCTIONS = 64
MAX_NAME = 128
MAX_WORD = 64
LOW_LOGPROB = -5.0
LOGPROB_DIGITS = 4
Value = TypeVar("Value")


@dataclass(frozen=True)
class StepRollouts:
    """Groups whose rollouts are stored in one S3 object."""

    step: int
    split: SampleSplit
    groups: Sequence[Group]
    environment: str | None = None
    """Environment of a validation or evaluation."""
    omitted: int = 0
    """Number of further rollouts that are not stored."""

    @property
    def use(self) -> str:
        """Part of the file name that distinguishes the objects of a step."""
        if self.environment is not None:
            return f"{self.split}-{file_name(self.environment)}"
        return "" if self.split is SampleSplit.train else str(self.split)

    @property
    def count(self) -> int:
        """Number of rollouts."""
        return sum(len(group.rollouts) for group in self.groups)


def encode_rollouts(rollouts: StepRollouts, redacted: Sequence[str]) -> tuple[bytes, StepSamples]:
    """Encode the rollouts as one S3 object, with the values of the `redacted` fields replaced (see `redact`). Returns
    the object's bytes and the summary of the rollouts.
    """
    groups = (
        [redact(record, redacted) for record in group_records(group, rollouts.step, rollouts.split)]
        for group in rollouts.groups
    )
    encoded = encode_samples(rollouts.step, rollouts.split, groups)
    summary = summarize(
        encoded.index,
        environment=rollouts.environment,
        file=rollouts_name(rollouts.step, rollouts.use),
        size=len(encoded.data),
        omitted=rollouts.omitted + encoded.omitted,
    )
    return encoded.data, summary


def group_records(group: Group, step: int, split: SampleSplit) -> list[SampleRecord]:
    """Return one record per rollout of a group that has ended, including failed ones."""
    return [_record(group, rollout, step, split) for rollout in group.rollouts]


def _record(group: Group, rollout: Rollout, step: int, split: SampleSplit) -> SampleRecord:
    result = rollout.result
    measured = group.state is GroupState.measured
    status, cause = _status(group, rollout)
    oldest = min(rollout.versions, default=group.version)
    return SampleRecord(
        step=step,
        split=split,
        group=group.id,
        ordinal=group.ordinal,
        rollout=result.rollout_id[:MAX_NAME],
        agent=result.agent[:MAX_NAME] if result.agent else None,
        episode=result.episode[:MAX_NAME] if result.episode else None,
        environment=group.example.environment,
        example=group.example.index,
        policy_version=oldest,
        staleness=None if measured else step - 1 - oldest,
        status=status,
        cause=cause[:MAX_WORD] if cause else None,
        reward=finite_or_none(result.reward),
        advantage=None if measured else rollout.advantage,
        rewards=_first_entries(result.rewards, MAX_FUNCTIONS),
        metrics=_first_entries(finite(result.metrics), MAX_METRICS),
        tokens=None if measured else _token_counts(rollout),
        turns=None if measured else rollout.turns,
        is_truncated=rollout.truncated,
        stop_condition=result.stop_condition[:MAX_WORD] if result.stop_condition else None,
        logprob=logprob_summary(rollout.trajectory.sequences),
        ms=Timings(
            generate=finite_or_none(result.generation_ms),
            score=finite_or_none(result.scoring_ms),
            group=finite_or_none(1000 * group.seconds),
        ),
        prompt=messages_of(_prompt(group, rollout), "user"),
        completion=messages_of(result.completion),
        answer=group.content.answer if group.content else None,
        info=group.content.info if group.content else None,
        error=rollout.error,
    )


def _status(group: Group, rollout: Rollout) -> tuple[SampleStatus, str | None]:
    """Return the status of a rollout, and the reason for a status other than trained or measured."""
    if rollout.error is not None:
        return SampleStatus.errored, rollout.error.reason
    if (rollout.left_out or rollout.masked) and group.state is GroupState.trained:
        return SampleStatus.filtered, FilterReason.zero_advantage if rollout.left_out else FilterReason.truncated
    return SampleStatus(group.state), group.cause


def _token_counts(rollout: Rollout) -> TokenCounts:
    completion = rollout.completion_tokens
    return TokenCounts(
        prompt=sum(len(s.token_ids) for s in rollout.trajectory.sequences) - completion, completion=completion
    )


def _prompt(group: Group, rollout: Rollout) -> Any:
    if rollout.result.prompt is not None:
        return rollout.result.prompt
    return group.content.prompt if group.content else None


def _first_entries(values: Mapping[str, Value], count: int) -> dict[str, Value]:
    return {name[:MAX_NAME]: value for name, value in islice(values.items(), count)}


def logprob_summary(sequences: Sequence[TokenSequence]) -> LogprobSummary | None:
    """Summarize the logprobs of all sampled tokens. Returns None if there are none or if one is not finite."""
    logprobs = sorted(chain.from_iterable(compress(s.logprobs, s.loss_mask) for s in sequences))
    # A sum that is not finite has a summand that is not finite.
    if not logprobs or not math.isfinite(total := sum(logprobs)):
        return None
    return LogprobSummary(
        mean=round(total / len(logprobs), LOGPROB_DIGITS),
        min=round(logprobs[0], LOGPROB_DIGITS),
        p05=round(logprobs[(len(logprobs) - 1) // 20], LOGPROB_DIGITS),
        low=round(bisect_left(logprobs, LOW_LOGPROB) / len(logprobs), LOGPROB_DIGITS),
    )
