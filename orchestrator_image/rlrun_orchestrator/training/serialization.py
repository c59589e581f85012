"""Converts a batch's groups to the samples of a training step."""

from array import array

from rlrun.api.run_sections.rollouts import TrainSampling
from rlrun.protocol.train_batch import Sample, SampleLoss

from rlrun_orchestrator.data.groups import Group
from rlrun_orchestrator.data.trajectories import TokenSequence


def training_samples(groups: list[Group]) -> list[Sample]:
    """Return one sample for each token sequence of every trained rollout."""
    return [
        sample_of(
            sequence,
            min(sequence.sampled_versions),
            advantage=rollout.advantage,
            teacher_logprobs=None if rollout.teacher_logprobs is None else rollout.teacher_logprobs[index],
            sampling=group.sampling,
        )
        for group in groups
        for rollout in group.trained_rollouts
        for index, sequence in enumerate(rollout.trajectory.sequences)
    ]


def sample_of(
    sequence: TokenSequence,
    version: int,
    *,
    advantage: float = 0.0,
    teacher_logprobs: "array[float] | None" = None,
    loss: SampleLoss = SampleLoss.policy,
    sampling: TrainSampling | None = None,
) -> Sample:
    """Return a sequence as a sample of the policy `version`."""
    several = len(sequence.sampled_versions) > 1
    return Sample(
        token_ids=sequence.token_ids,
        loss_mask=sequence.loss_mask,
        logprobs=sequence.logprobs,
        advantage=advantage,
        policy_version=version,
        turn_starts=sequence.turn_starts,
        teacher_logprobs=teacher_logprobs,
        loss=loss,
        turn_versions=[span.version for span in sequence.sampled] if several else None,
        sampling=sampling,
    )


def trained_tokens(groups: list[Group]) -> int:
    """Return the number of tokens that receive a gradient: the tokens that the policy sampled."""
    return sum(rollout.completion_tokens for group in groups for rollout in group.trained_rollouts)
