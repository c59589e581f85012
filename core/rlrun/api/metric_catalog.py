"""Every metric of a run: its name, unit and meaning. docs/reference/metrics.md is made of this.

A part in angle brackets stands for something else: `<environment>` for the name of an environment, `<spread>` for
`mean`, `max` and `min`, `<k>` for a number.
"""

import re
from dataclasses import dataclass

PLACEHOLDERS = {
    "environment": r"[^/]+",
    "spread": r"(mean|max|min)",
    "k": r"\d+",
    "name": r".+",
    "cause": r"\w+",
}


@dataclass(frozen=True)
class Metric:
    """One metric, or a family of them."""

    name: str
    unit: str
    text: str

    @property
    def pattern(self) -> re.Pattern[str]:
        """What the names of the family look like."""
        parts = re.split(r"<(\w+)>", self.name)
        return re.compile("".join(PLACEHOLDERS[p] if i % 2 else re.escape(p) for i, p in enumerate(parts)))


@dataclass(frozen=True)
class Section:
    """Metrics that belong together."""

    title: str
    text: str
    metrics: tuple[Metric, ...]


def _metrics(*rows: tuple[str, str, str]) -> tuple[Metric, ...]:
    return tuple(Metric(*row) for row in rows)


SECTIONS = (
    Section(
        "Rewards",
        "Of the rollouts that a step trained on.",
        _metrics(
            ("reward/<spread>", "", "Reward."),
            ("reward/<environment>/mean", "", "Mean reward of one environment."),
            ("reward/histogram", "rollouts", "Rewards per bucket, not cumulative: a list of numbers."),
            ("reward/histogram/bounds", "", "Upper bounds of the buckets but the last: a list of numbers."),
            ("reward/<environment>/histogram", "rollouts", "The same of one environment."),
            ("metrics/<name>/mean", "", "What the environment itself measures, by its name for it."),
            ("teacher_kl/mean", "nats per token", "Distillation: divergence from the teacher on the rollouts."),
        ),
    ),
    Section(
        "Evaluation",
        "In the line of the step whose policy was measured, whenever the evaluation ends; step 0 is the base model. "
        "Sampled as in training. A rollout passes with a reward of at least 1; one that failed counts in `error` only.",
        _metrics(
            ("eval/<environment>/avg@<k>", "", "Mean reward; k is rolloutsPerExample."),
            (
                "eval/<environment>/pass@<k>",
                "",
                "Probability that one of k rollouts passes, mean over the examples: 1 - C(n-c, k) / C(n, k) with c of "
                "n passed (Chen et al. 2021), for k = 1, 2, 4, ... and rolloutsPerExample.",
            ),
            ("eval/<environment>/error", "share", "Rollouts that failed."),
            ("eval/<environment>/is_truncated", "share", "Rollouts cut off at maxTokens or seqLen."),
            ("eval/<environment>/examples", "", "Examples measured."),
            ("eval/<environment>/seconds", "s", "How long it took."),
            (
                "eval/<environment>/drift",
                "steps",
                "Full fine-tuning: how much newer the engines' weights were at the end than at the beginning; above 0 "
                "the results are of a mixture.",
            ),
            ("val_reward/mean", "", "Mean reward of validation over all training environments."),
            ("val_reward/<environment>/mean", "", "Mean reward of one of them."),
            ("val_reward/<environment>/error", "share", "Rollouts that failed."),
            ("val_reward/<environment>/examples", "", "Examples measured."),
            ("val_reward/<environment>/seconds", "s", "How long it took."),
            ("val_reward/<environment>/drift", "steps", "As of evaluations."),
        ),
    ),
    Section(
        "Rollouts",
        "Of the rollouts that a step trained on.",
        _metrics(
            ("seq_len/<spread>", "tokens", "Prompt and completion."),
            ("prompt_len/<spread>", "tokens", "Tokens that the policy did not draw, those of later turns included."),
            ("completion_len/<spread>", "tokens", "Tokens that the policy drew."),
            ("num_turns/<spread>", "", "Answers of the policy."),
            ("generation_ms/<spread>", "ms", "From the first request to the last answer, tools included."),
            ("scoring_ms/<spread>", "ms", "In reward functions."),
            ("is_truncated/mean", "share", "Rollouts cut off at maxTokens or seqLen."),
            ("error/mean", "share", "Rollouts that failed, of all in the batch's groups."),
            ("filtered_rollouts", "rollouts", "Filtered for their rewards since the step before."),
            ("filtered_rollouts/<cause>", "rollouts", "The same by cause."),
            ("evicted_examples/<cause>", "examples", "Examples that left the draw since the step before, by pool."),
            ("pool/<cause>", "share", "Examples that are easy, hard, or normal, of all."),
        ),
    ),
    Section(
        "Batch",
        "",
        _metrics(
            ("batch/effective_batch_size", "rollouts", "Trained on."),
            ("batch/missing_rollouts", "rollouts", "Of the batch's groups that failed."),
            ("batch/demonstrations", "", "Supervised steps: demonstrations trained on."),
            ("batch/solve_none", "share", "Groups without any reward above 0."),
            ("batch/solve_all", "share", "Groups with all rewards at least 1."),
            ("batch/zero_variance", "share", "Groups whose rewards are all equal: they teach nothing."),
            ("batch/off_policy_level/<spread>", "steps", "How much older than the step the rollouts' policy was."),
            ("batch/async_level", "steps", "How far the trainer is ahead of the newest policy that is served."),
            ("batch/inflight_rollouts", "rollouts", "Being made when the step ended."),
            ("batch/cancelled_rollouts", "rollouts", "Given up since the step before, for their age."),
            ("batch/samples_per_rollout", "", "Training sequences per rollout; above 1 where prefixes broke."),
            ("batch/prefix_breaks", "", "Turns whose prompt did not begin with the tokens before."),
            ("batch/prefix_bridges", "", "Turns that were sent as tokens, so that their prompt did."),
            ("batch/samples", "", "Training sequences."),
            ("batch/tokens", "tokens", "Of all sequences."),
            ("batch/trainable_tokens", "tokens", "That count in the loss."),
            ("batch/micro_batches", "", "Passes of the step."),
            ("batch/padding", "share", "Places of the passes that hold no token."),
        ),
    ),
    Section(
        "Learning",
        "From the trainer.",
        _metrics(
            ("loss/mean", "", "Loss per trainable token, penalty included."),
            ("loss/policy/mean", "", "Mixed batches: of tokens under the policy gradient."),
            ("loss/cross_entropy/mean", "nats per token", "Mixed batches: of demonstrations."),
            ("entropy/all/mean", "nats per token", "Of the policy where it drew tokens."),
            ("mismatch_kl/all/mean", "nats per token", "r - log r - 1, r being trainer over engine probability."),
            ("mismatch_kl/all/max", "nats", "The largest of a token."),
            ("mismatch_kl/on_policy/mean", "nats per token", "Of tokens that the very policy of the step drew."),
            ("importance_ratio/<spread>", "", "Trainer over engine probability."),
            ("is_masked/mean", "share", "Tokens left out of the loss for their ratio."),
            ("kl_penalty/kl", "nats per token", "Divergence from the model that training started from."),
            ("kl_penalty/beta", "", "Its weight in the loss."),
            ("optim/lr", "", "Learning rate."),
            ("optim/grad_norm", "", "Norm of the gradient before clipping."),
        ),
    ),
    Section(
        "Time and speed",
        "High `time/generate_completions`: the rollouts are the bottleneck. High `time/wait_for_policy` or "
        "`time/trainer`: the trainer is.",
        _metrics(
            ("time/step", "s", "From the end of the step before to the end of this one."),
            ("time/generate_completions", "s", "Until the batch was complete."),
            ("time/wait_for_policy", "s", "Part of it, with nothing to do but to wait for a newer policy."),
            ("time/wait_for_ckpt", "s", "The same, under the name that others know."),
            ("time/trainer", "s", "Until the trainer answered."),
            ("time/update_weights", "s", "From the trainer's answer until the engines served the newest policy."),
            ("time/save_ckpt", "s", "Waiting, batch in hand, for the checkpoint copies of the step before."),
            ("time/group", "s", "Mean duration of a group at its environment."),
            ("time/wait_for_batch", "s", "The trainer waiting for a batch."),
            ("time/forward_backward", "s", "The trainer's passes."),
            ("time/broadcast_weights", "s", "The trainer putting the policy into S3."),
            ("trainer/time/step", "s", "The trainer's step, publishing included."),
            ("trainer/time/save_ckpt", "s", "The trainer's copies for checkpoint and adapter after the step before."),
            ("perf/throughput", "tokens/s", "Trained tokens over the time of the step."),
            ("trainer/perf/throughput", "tokens/s", "All tokens over the time of the trainer's passes and update."),
            ("perf/mfu", "%", "Model FLOPs utilisation, 6 FLOP per weight and token. On GPUs that are known."),
            ("perf/peak_memory", "GiB", "Largest GPU memory of the step. On GPUs."),
        ),
    ),
    Section(
        "Progress",
        "Totals go over all processes of the run; a step that is made again after a restart counts again.",
        _metrics(
            ("progress/step", "steps", "Done. Only lines of trained steps have it."),
            ("progress/ckpt_step", "steps", "Version of the newest policy that is served."),
            ("progress/tokens", "tokens", "Of this step's sequences."),
            ("progress/samples", "", "Training sequences of this step."),
            ("progress/problems", "", "Examples of this step."),
            ("progress/total_tokens", "tokens", "In all."),
            ("progress/total_samples", "", "In all."),
            ("progress/total_problems", "", "In all."),
            ("progress/trainer_restarts", "", "Times that the trainer was replaced."),
        ),
    ),
)


def find(name: str) -> Metric | None:
    """The metric of that name."""
    return next((m for section in SECTIONS for m in section.metrics if m.pattern.fullmatch(name)), None)
