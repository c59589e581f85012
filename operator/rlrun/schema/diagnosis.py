"""What can be wrong with the training itself, though every process is well: one word each, stable for machines.

The orchestrator finds these in the metrics and the operator makes the condition `TrainingHealthy` of them.
"""

from enum import StrEnum


class Trouble(StrEnum):
    """Training that goes on and leads nowhere."""

    reward_flat_at_zero = "RewardFlatAtZero"
    reward_flat_at_one = "RewardFlatAtOne"
    no_reward_diversity = "NoRewardDiversity"
    most_groups_filtered = "MostGroupsFiltered"
    reward_collapsed = "RewardCollapsed"
    policy_mismatch = "PolicyMismatch"
    tokens_masked = "TokensMasked"
    entropy_collapsed = "EntropyCollapsed"
    throughput_stalled = "ThroughputStalled"


class Hint(StrEnum):
    """What a run that is well could do faster."""

    rollout_bound = "RolloutBound"
    trainer_bound = "TrainerBound"
