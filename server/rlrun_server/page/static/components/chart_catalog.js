/** Charts of a run: which metrics each shows. Names are those of docs/reference/metrics.md. */

/**
 * @typedef {object} ChartSeries
 * @property {string} metric name, or a pattern in which `*` stands for any text
 * @property {string} [label] `*` is replaced by what the pattern's `*` stands for
 * @property {boolean} [isPoints] drawn as points: it has a value in some steps only
 * @property {string[]} [except] names that the pattern does not mean
 */

/**
 * @typedef {object} ChartSpec
 * @property {string} id
 * @property {string} title
 * @property {string} [unit]
 * @property {string} about what it tells
 * @property {ChartSeries[]} series
 * @property {boolean} [isLog] logarithmic unless the user chooses otherwise
 * @property {boolean} [isStacked]
 * @property {boolean} [hasBand] twice the standard error of the mean reward around the first series
 * @property {boolean} [isTall]
 */

/** @typedef {{id: string, title: string, charts: ChartSpec[]}} ChartGroup */

/** @type {ChartGroup[]} */
export const CHART_GROUPS = [
  {
    id: "learning",
    title: "Learning",
    charts: [
      {
        id: "reward", title: "Reward", isTall: true, hasBand: true,
        about: "Mean of each step. The band is ± 1.96 standard errors over groups.",
        series: [
          { metric: "reward/mean", label: "train" },
          { metric: "val_reward/mean", label: "validation", isPoints: true },
          { metric: "eval/*/avg@*", label: "eval *", isPoints: true },
        ],
      },
      {
        id: "environments", title: "Reward by environment", about: "Mean reward of each environment.",
        series: [{ metric: "reward/*/mean", label: "*" }],
      },
      {
        id: "functions", title: "Reward functions and metrics", about: "Means of what the environments report.",
        series: [{ metric: "metrics/*/mean", label: "*" }],
      },
      {
        id: "pass", title: "Evaluation: pass@k", about: "Probability that at least one of k rollouts passes.",
        series: [{ metric: "eval/*/pass@*", label: "*", isPoints: true }],
      },
      {
        id: "loss", title: "Loss", unit: "per token", about: "Loss per trainable token, with the KL penalty.",
        series: [
          { metric: "loss/mean", label: "loss" },
          { metric: "loss/policy/mean", label: "policy" },
          { metric: "loss/cross_entropy/mean", label: "cross-entropy" },
        ],
      },
    ],
  },
  {
    id: "stability",
    title: "Stability",
    charts: [
      {
        id: "entropy", title: "Entropy", unit: "nats per token", about: "Entropy at the sampled tokens. Near 0 the policy explores no more.",
        series: [{ metric: "entropy/all/mean", label: "entropy" }],
      },
      {
        id: "mismatch", title: "Mismatch KL", unit: "nats per token", isLog: true,
        about: "Disagreement of trainer and engine about the sampled tokens. Near 0 is good.",
        series: [
          { metric: "mismatch_kl/all/mean", label: "mean" },
          { metric: "mismatch_kl/all/max", label: "greatest" },
          { metric: "mismatch_kl/on_policy/mean", label: "on policy" },
        ],
      },
      {
        id: "mismatch-by-age", title: "Mismatch KL by age", unit: "nats per token", isLog: true,
        about: "The same by the age in steps of the policy that sampled the token.",
        series: [{ metric: "mismatch_kl/age_*/mean", label: "* steps" }],
      },
      {
        id: "ratio", title: "Importance ratio", about: "Probability of the trainer over that of the engine.",
        series: [
          { metric: "importance_ratio/mean", label: "mean" },
          { metric: "importance_ratio/max", label: "greatest" },
          { metric: "importance_ratio/min", label: "least" },
        ],
      },
      {
        id: "masked", title: "Masked tokens", unit: "share", about: "Tokens left out of the loss for their importance ratio.",
        series: [{ metric: "is_masked/mean", label: "masked" }],
      },
      {
        id: "gradient", title: "Gradient norm", about: "Before clipping.",
        series: [{ metric: "optim/grad_norm", label: "norm" }],
      },
      {
        id: "kl", title: "KL from the initial model", unit: "nats per token", about: "Divergence that the KL penalty weighs, or that from the teacher.",
        series: [
          { metric: "kl_penalty/kl", label: "initial model" },
          { metric: "teacher_kl/mean", label: "teacher" },
        ],
      },
      {
        id: "rate", title: "Learning rate", about: "Learning rate of the step.",
        series: [{ metric: "optim/lr", label: "rate" }],
      },
    ],
  },
  {
    id: "data",
    title: "Data",
    charts: [
      {
        id: "signal", title: "Groups without a signal", unit: "share", about: "Groups that are all right, all wrong, or all equal.",
        series: [
          { metric: "batch/zero_variance", label: "all equal" },
          { metric: "batch/solve_none", label: "none solved" },
          { metric: "batch/solve_all", label: "all solved" },
        ],
      },
      {
        id: "length", title: "Length", unit: "tokens", about: "Tokens that the policy sampled, and those of prompts.",
        series: [
          { metric: "completion_len/mean", label: "completion" },
          { metric: "completion_len/max", label: "longest completion" },
          { metric: "drawn_completion_len/mean", label: "completion, trained on or not" },
          { metric: "prompt_len/mean", label: "prompt" },
        ],
      },
      {
        id: "errors", title: "Errors and truncation", unit: "share", about: "Rollouts that failed, or were cut off.",
        series: [
          { metric: "error/mean", label: "failed" },
          { metric: "is_truncated/mean", label: "cut off" },
        ],
      },
      {
        id: "staleness", title: "Staleness", unit: "steps", about: "Age of the policy that sampled, and lead of the trainer.",
        series: [
          { metric: "batch/off_policy_level/mean", label: "mean" },
          { metric: "batch/off_policy_level/max", label: "oldest" },
          { metric: "batch/async_level", label: "trainer ahead" },
        ],
      },
      {
        id: "env-shares", title: "Shares of environments", unit: "share",
        about: "Rollouts of each environment in the batch, and its weight.",
        series: [{ metric: "env_share/*/trained", label: "*" }, { metric: "env_share/*/weight", label: "*, weight" }],
      },
      {
        id: "filtered", title: "Filtered rollouts", unit: "rollouts", about: "Rollouts filtered since the previous step, by cause.",
        series: [{ metric: "filtered_rollouts/*", label: "*" }, { metric: "filtered_rollouts", label: "all" }],
      },
      {
        id: "pools", title: "Difficulty", unit: "share", isStacked: true, about: "Easy, normal and hard examples.",
        series: [{ metric: "pool/*", label: "*" }],
      },
      {
        id: "turns", title: "Turns", about: "Completions per rollout.",
        series: [{ metric: "num_turns/mean", label: "mean" }, { metric: "num_turns/max", label: "most" }],
      },
    ],
  },
  {
    id: "speed",
    title: "Speed",
    charts: [
      {
        id: "phases", title: "Time per step", unit: "s", isStacked: true, about: "Seconds of each phase, one upon the other.",
        series: [
          { metric: "time/generate_completions", label: "rollouts" },
          { metric: "time/trainer", label: "trainer" },
          { metric: "time/save_ckpt", label: "checkpoint" },
        ],
      },
      {
        id: "waits", title: "Waiting", unit: "s", about: "For a newer policy, for a batch, and for engines to load the policy.",
        series: [
          { metric: "time/wait_for_policy", label: "for a policy" },
          { metric: "time/wait_for_batch", label: "for a batch" },
          { metric: "time/update_weights", label: "new weights" },
        ],
      },
      {
        id: "throughput", title: "Tokens per second", unit: "tokens/s", about: "Trained tokens of the step, and all tokens of the trainer's passes.",
        series: [
          { metric: "perf/throughput", label: "whole step" },
          { metric: "trainer/perf/throughput", label: "trainer" },
        ],
      },
      {
        id: "flight", title: "Rollouts in flight", unit: "rollouts", about: "In progress, and cancelled for their age.",
        series: [
          { metric: "batch/inflight_rollouts", label: "in flight" },
          { metric: "batch/cancelled_rollouts", label: "cancelled" },
        ],
      },
      {
        id: "latency", title: "Rollout latency", unit: "ms", about: "Time in generation and in reward functions.",
        series: [
          { metric: "generation_ms/mean", label: "generation" },
          { metric: "scoring_ms/mean", label: "scoring" },
        ],
      },
      {
        id: "mfu", title: "Model FLOPs utilization", unit: "%", about: "On known GPU types.",
        series: [{ metric: "perf/mfu", label: "MFU" }],
      },
      {
        id: "memory", title: "GPU memory", unit: "GiB", about: "Peak of the step.",
        series: [{ metric: "perf/peak_memory", label: "peak" }],
      },
    ],
  },
];

/** Title that the charts of a run give to a metric, or its name. @param {string} metric */
export function titleOf(metric) {
  for (const { title, series } of CHART_GROUPS.flatMap(({ charts }) => charts)) {
    const found = series.find((one) => one.metric === metric);
    if (found) return series[0] === found ? title : `${title}: ${found.label}`;
  }
  const own = /^(reward|eval)\/(.+)\/(mean|avg@\d+)$/s.exec(metric);
  if (!own) return metric;
  return own[1] === "reward" ? `Reward: ${own[2]}` : `Evaluation: ${own[2]} ${own[3]}`;
}

/** Names that the request for a group of charts has. @param {ChartGroup} group */
export function metricNames(group) {
  const names = group.charts.flatMap((chart) => chart.series.map(({ metric }) => metric.replace(/\*.*$/, "*")));
  return [...new Set(names)];
}
