"""JSON records of the rollouts of a batch, as stored in S3."""

from typing import Any

from rlrun_orchestrator.data.groups import Group


def rollout_lines(groups: list[Group], step: int) -> list[dict[str, Any]]:
    """Return one JSON object per rollout of the batch, failed ones included."""
    return [
        {
            "step": step,
            "group": group.id,
            "ordinal": group.ordinal,
            "environment": group.example.environment,
            "example": group.example.index,
            "policyVersion": group.version,
            "rollout": rollout.result.rollout_id,
            "reward": rollout.result.reward,
            "advantage": rollout.advantage,
            "metrics": rollout.result.metrics,
            "stopCondition": rollout.result.stop_condition,
            "isTruncated": rollout.truncated,
            "turns": rollout.turns,
            "promptTokens": rollout.prompt_tokens,
            "completionTokens": rollout.completion_tokens,
            "error": rollout.error.to_json_dict() if rollout.error else None,
            "completion": rollout.result.completion,
        }
        for group in groups
        for rollout in group.rollouts
    ]
