"""Conversion of a batch's groups to the body of a training step."""

from typing import Any

from rlrun_orchestrator.data.groups import Group


def training_samples(groups: list[Group]) -> list[dict[str, Any]]:
    """Return one `Sample` (under its JSON names) per sequence of every rollout that the step trains on.

    Returns plain dictionaries instead of validated models, because a batch is large and the trainer validates it
    anyway.
    """
    return [
        {
            "tokenIds": sequence.token_ids,
            "lossMask": sequence.loss_mask,
            "logprobs": sequence.logprobs,
            "turnStarts": sequence.turn_starts,
            "advantage": rollout.advantage,
            "policyVersion": min(sequence.sampled_versions),
            **({"policyVersions": sequence.versions} if len(sequence.sampled_versions) > 1 else {}),
            **({"sampling": group.sampling.to_json_dict()} if group.sampling is not None else {}),
            **({"teacherLogprobs": rollout.teacher_logprobs[index]} if rollout.teacher_logprobs is not None else {}),
        }
        for group in groups
        for rollout in group.trained_rollouts
        for index, sequence in enumerate(rollout.trajectory.sequences)
    ]


def trained_tokens(groups: list[Group]) -> int:
    """Return the number of tokens that receive a gradient: the tokens that the policy sampled."""
    return sum(rollout.completion_tokens for group in groups for rollout in group.trained_rollouts)
