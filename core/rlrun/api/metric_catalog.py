"""Catalog of a run's metrics: name, unit and meaning. docs/reference/metrics.md is generated from it.

A part in angle brackets is a placeholder: `<environment>` and `<agent>` for their names, `<spread>` for `mean`, `max`
and `min`, `<k>` for a number.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

PLACEHOLDERS = {
    "environment": r"[^/]+",
    "agent": r"[^/]+",
    "spread": r"(mean|max|min)",
    "k": r"\d+",
    "name": r".+",
    "cause": r"\w+",
}


@dataclass(frozen=True)
class Metric:
    """One metric, or a family of metrics whose name has placeholders."""

    name: str
    unit: str
    text: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """Pattern of the names of the family."""
        parts = re.split(r"<(\w+)>", self.name)
        return re.compile("".join(PLACEHOLDERS[p] if i % 2 else re.escape(p) for i, p in enumerate(parts)))


@dataclass(frozen=True)
class Section:
    """Group of related metrics."""

    title: str
    text: str
    metrics: tuple[Metric, ...]


def _metrics(*rows: tuple[str, str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(*row) for row in rows)


SECTIONS = (
    Section(
        "Rewards",
        "Rewards of the valid rollouts of a step's batch, those with an advantage of 0 included.",
        _metrics(
            ("reward/<spread>", "", "Reward."),
            ("reward/<environment>/mean", "", "Mean reward of one environment."),
            (
                "reward/<environment>/<agent>/mean",
                "",
                "Mean reward of one agent of an environment with several.",
            ),
            ("reward/histogram", "rollouts", "Number of rewards per bucket, not cumulative: a list of numbers."),
            ("reward/histogram/bounds", "", "Upper bounds of all buckets except the last: a list of numbers."),
            ("reward/<environment>/histogram", "rollouts", "Number of rewards of one environment per bucket."),
            ("metrics/<name>/mean", "", "Mean of a metric that the environment reports under this name."),
        ),
    ),
    Section(
        "Evaluation",
        "An evaluation belongs to the step whose policy was evaluated, also if it ends later. Step 0 is the base "
        "model. Sampling is as in training. A rollout passes with a reward of at least 1. A failed rollout counts "
        "only in `error`. Each agent of an environment with several is measured by itself, and the values of the "
        "environment are the means over its agents.",
        _metrics(
            ("eval/<environment>/avg@<k>", "", "Mean reward, where k is rolloutsPerExample."),
            (
                "eval/<environment>/pass@<k>",
                "",
                "Probability that at least one of k rollouts passes, mean over the examples: 1 - C(n-c, k) / C(n, k), "
                "where c of n rollouts passed (Chen et al. 2021), for k = 1, 2, 4, ... and rolloutsPerExample.",
            ),
            ("eval/<environment>/<agent>/avg@<k>", "", "Mean reward of one agent of an environment with several."),
            ("eval/<environment>/<agent>/pass@<k>", "", "pass@k of one agent of an environment with several."),
            ("eval/<environment>/error", "share", "Failed rollouts."),
            ("eval/<environment>/is_truncated", "share", "Rollouts cut off at maxTokens or seqLen."),
            ("eval/<environment>/examples", "", "Evaluated examples."),
            ("eval/<environment>/seconds", "s", "Duration."),
            (
                "eval/<environment>/drift",
                "steps",
                "Full fine-tuning: steps by which the engines' weights advanced during the evaluation. Above 0, the "
                "results are from several versions.",
            ),
            ("val_reward/mean", "", "Mean reward of the validation over all training environments."),
            ("val_reward/<environment>/mean", "", "Mean reward of the validation on one environment."),
            (
                "val_reward/<environment>/<agent>/mean",
                "",
                "Mean reward of one agent of an environment with several.",
            ),
            ("val_reward/<environment>/error", "share", "Failed rollouts."),
            ("val_reward/<environment>/examples", "", "Evaluated examples."),
            ("val_reward/<environment>/seconds", "s", "Duration."),
            ("val_reward/<environment>/drift", "steps", "As for evaluations."),
        ),
    ),
    Section(
        "Rollouts",
        "Properties of the valid rollouts of a step's batch, those with an advantage of 0 included.",
        _metrics(
            ("seq_len/<spread>", "tokens", "Length of prompt and completion."),
            ("prompt_len/<spread>", "tokens", "Tokens not sampled by the policy, including those of later turns."),
            ("completion_len/<spread>", "tokens", "Tokens sampled by the policy."),
            (
                "drawn_completion_len/<spread>",
                "tokens",
                "Tokens sampled by the policy, of all rollouts that ended since the previous step, trained on or not.",
            ),
            ("num_turns/<spread>", "", "Turns: completions of the policy."),
            ("generation_ms/<spread>", "ms", "Time from the first request to the last response, including tools."),
            ("scoring_ms/<spread>", "ms", "Time in reward functions."),
            ("is_truncated/mean", "share", "Rollouts cut off at maxTokens or seqLen."),
            ("error/mean", "share", "Failed rollouts among all of the batch's groups."),
            ("filtered_rollouts", "rollouts", "Rollouts filtered for their rewards since the previous step."),
            ("filtered_rollouts/<cause>", "rollouts", "Filtered rollouts by cause."),
            (
                "evicted_examples/<cause>",
                "examples",
                "Examples excluded from sampling since the previous step, by pool.",
            ),
            (
                "readmitted_examples",
                "examples",
                "Excluded examples that returned to sampling since the previous step, those excluded longest ago "
                "first, because an environment had fewer normal examples than a batch has groups.",
            ),
            ("pool/<cause>", "share", "Easy, hard or normal examples among all examples."),
        ),
    ),
    Section(
        "Batch",
        "",
        _metrics(
            ("batch/effective_batch_size", "rollouts", "Rollouts trained on."),
            (
                "batch/zero_advantage_rollouts",
                "rollouts",
                "Valid rollouts that the step was not trained on, because their advantage is 0 (see "
                "algorithm.filterZeroAdvantages).",
            ),
            ("batch/missing_rollouts", "rollouts", "Failed rollouts of the batch's groups."),
            (
                "batch/untaught_rollouts",
                "rollouts",
                "Distillation: rollouts of the batch's groups that the teacher refused.",
            ),
            ("batch/demonstrations", "", "Supervised steps: demonstrations trained on."),
            ("batch/solve_none", "share", "Groups without any reward above 0."),
            ("batch/solve_all", "share", "Groups with all rewards at least 1."),
            ("batch/zero_variance", "share", "Groups whose rewards are all equal, which give no training signal."),
            ("batch/off_policy_level/<spread>", "steps", "Age of the oldest token of each rollout."),
            (
                "batch/policies_per_rollout",
                "",
                "Mean number of policies per rollout. Above 1 if one was published between turns.",
            ),
            ("batch/async_level", "steps", "Steps by which the trainer is ahead of the newest served policy."),
            ("batch/inflight_rollouts", "rollouts", "Rollouts in progress at the end of the step."),
            ("batch/cancelled_rollouts", "rollouts", "Rollouts cancelled for their age since the previous step."),
            (
                "batch/stale_rollouts",
                "rollouts",
                "Rollouts dropped for their age since the previous step, the cancelled ones included.",
            ),
            ("batch/redrawn_examples", "examples", "Examples drawn again, because their rollouts were dropped."),
            ("batch/lost_examples", "examples", "Examples whose rollouts were dropped three times."),
            ("env_share/<environment>/trained", "share", "Rollouts of the environment among those of the batch."),
            ("env_share/<environment>/weight", "share", "Weight of the environment among all weights."),
            (
                "batch/samples_per_rollout",
                "",
                "Training sequences per rollout. Above 1 if turns did not continue the tokens before.",
            ),
            (
                "batch/prefix_breaks",
                "",
                "Turns after the first one of a rollout whose prompt did not start with the tokens of any sequence.",
            ),
            (
                "batch/prefix_bridges",
                "",
                "Turns that were sent as tokens, so that their prompt starts with those of an earlier turn.",
            ),
            ("batch/samples", "", "Training sequences."),
            ("batch/tokens", "tokens", "Tokens of all sequences."),
            ("batch/trainable_tokens", "tokens", "Tokens that count in the loss."),
            ("batch/micro_batches", "", "Forward and backward passes of the step."),
            (
                "batch/samples_per_row",
                "",
                "Training sequences that share a row of a pass. 1 for models whose layers would mix them.",
            ),
            ("batch/padding", "share", "Positions of the passes without a token."),
        ),
    ),
    Section(
        "Learning",
        "Measured by the trainer.",
        _metrics(
            ("loss/mean", "", "Loss per trainable token, including the KL penalty."),
            ("loss/policy/mean", "", "Mixed batches: loss of the tokens with a policy gradient."),
            ("loss/cross_entropy/mean", "nats per token", "Mixed batches: loss of the demonstrations."),
            ("entropy/all/mean", "nats per token", "Entropy of the policy at the sampled tokens."),
            (
                "mismatch_kl/all/mean",
                "nats per token",
                "r - log r - 1, where r is the trainer's probability over the engine's.",
            ),
            ("mismatch_kl/all/max", "nats", "Maximum over the tokens."),
            ("mismatch_kl/on_policy/mean", "nats per token", "Mean over tokens sampled by the policy of the step."),
            (
                "mismatch_kl/age_<k>/mean",
                "nats per token",
                "Mean over tokens of the policy k steps before, 1 to 8. Older ones count among those of 8.",
            ),
            ("importance_ratio/<spread>", "", "Probability of the trainer over that of the engine."),
            ("is_masked/mean", "share", "Tokens excluded from the loss for their importance ratio."),
            (
                "teacher_kl/mean",
                "nats per token",
                "Distillation: log-probability of the policy of the step minus that of the teacher on the sampled "
                "tokens, both without sampling settings, clipped to 5 nats per token. Each token is weighted by the "
                "policy's probability without sampling settings over that with them, at most 8.",
            ),
            (
                "kl_penalty/kl",
                "nats per token",
                "Divergence from the model at the start of reinforcement learning (see klPenalty).",
            ),
            ("kl_penalty/beta", "", "Weight of the KL penalty in the loss."),
            ("optim/lr", "", "Learning rate."),
            ("optim/grad_norm", "", "Norm of the gradient before clipping."),
        ),
    ),
    Section(
        "Time and speed",
        "The rollouts are the bottleneck if `time/generate_completions` is high, the trainer if "
        "`time/wait_for_policy` or `time/trainer` is high.",
        _metrics(
            ("time/step", "s", "Time from the end of the previous step to the end of this one."),
            ("time/generate_completions", "s", "Time until the batch was complete."),
            ("time/wait_for_policy", "s", "Part of it spent only waiting for a newer policy."),
            ("time/wait_for_ckpt", "s", "Equal to `time/wait_for_policy`; the name that other trainers use."),
            ("time/trainer", "s", "Time until the response of the trainer."),
            (
                "time/update_weights",
                "s",
                "Time from the trainer's response until the engines served the newest policy.",
            ),
            ("time/save_ckpt", "s", "Waiting with a complete batch for the checkpoint copies of the previous step."),
            ("time/group", "s", "Mean duration of a group in its environment."),
            ("time/wait_for_batch", "s", "Time in which the trainer waited for a batch."),
            ("time/forward_backward", "s", "Duration of the trainer's passes."),
            ("time/broadcast_weights", "s", "Duration of the trainer's upload of the policy to S3."),
            ("trainer/time/step", "s", "Duration of the trainer's step, including the publication of the policy."),
            (
                "trainer/time/save_ckpt",
                "s",
                "Time to copy the state for checkpoint and adapter after the previous step.",
            ),
            ("perf/throughput", "tokens/s", "Trained tokens per second of the step."),
            ("trainer/perf/throughput", "tokens/s", "All tokens per second of the trainer's passes and update."),
            ("perf/mfu", "%", "Model FLOPs utilization with 6 FLOPs per weight and token. Only on known GPU types."),
            ("perf/peak_memory", "GiB", "Peak GPU memory of the step. Only on GPUs."),
        ),
    ),
    Section(
        "Progress",
        "Totals include all attempts of the run. A step that is repeated after a restart counts again.",
        _metrics(
            ("progress/step", "steps", "Completed steps. Only in lines of trained steps."),
            ("progress/ckpt_step", "steps", "Version of the newest served policy."),
            ("progress/tokens", "tokens", "Tokens of this step's sequences."),
            ("progress/samples", "", "Training sequences of this step."),
            ("progress/problems", "", "Examples of this step."),
            ("progress/total_tokens", "tokens", "Total number of tokens."),
            ("progress/total_samples", "", "Total number of training sequences."),
            ("progress/total_problems", "", "Total number of examples."),
            ("progress/trainer_restarts", "", "Number of replacements of the trainer."),
        ),
    ),
)


def find(name: str) -> Metric | None:
    """Return the metric with that name, None if it is not in the catalog."""
    return next((m for section in SECTIONS for m in section.metrics if m.pattern.fullmatch(name)), None)


@dataclass(frozen=True)
class Alias:
    """Name that self-managed trainers use for a metric."""

    name: str
    metric: str
    """Name of the metric here."""


ALIASES = (
    Alias("train/reward", "reward/mean"),
    Alias("train/loss", "loss/mean"),
    Alias("train/learning_rate", "optim/lr"),
    Alias("train/kl_divergence", "kl_penalty/kl"),
    Alias("rollout/mean_length", "seq_len/mean"),
    Alias("rollout/generation_time", "time/generate_completions"),
)
"""Names in the documentation of self-managed trainers."""


def with_aliases(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of metrics, with those that have an alias under that name too."""
    return {**values, **{alias.name: values[alias.metric] for alias in ALIASES if alias.metric in values}}


def canonical(name: str) -> str:
    """Return the metric's name here: that of the alias, or `name` itself."""
    return next((alias.metric for alias in ALIASES if alias.name == name), name)
