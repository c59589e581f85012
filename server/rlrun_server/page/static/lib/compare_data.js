/** Metrics of several runs on one axis. Pure. */
import { lastOf, smoothed } from "./chart_data.js";

/** Weight of the exponential mean that stands for about ten steps. */
const TEN_STEPS = 0.82;

/**
 * Return the lines of a metric, one per run, on the steps of all runs, or on seconds since each run's first step.
 * @param {string} name
 * @param {(import("./metrics.js").MetricTable | null)[]} tables
 * @param {string[]} labels
 * @param {"step" | "time"} x
 */
export function comparedLines(name, tables, labels, x) {
  const axes = tables.map((table) => (table ? axisOf(table, x) : []));
  const places = new Map([...new Set(axes.flat())].sort((a, b) => a - b).map((value, at) => [value, at]));
  const lines = [];
  tables.forEach((table, run) => {
    const column = table?.columns.get(name);
    const values = Array(places.size).fill(null);
    column?.forEach((value, at) => {
      if (value !== null) values[/** @type {number} */ (places.get(axes[run][at]))] = value;
    });
    // A run without the metric keeps its place: colors stand for runs.
    lines.push({ label: labels[run], values, isPoints: /^eval\/|^val_reward\//.test(name) });
  });
  const xs = [...places.keys()];
  return { steps: xs, times: xs, lines: lines.some(({ values }) => values.some((value) => value !== null)) ? lines : [] };
}

function axisOf(table, x) {
  if (x === "step") return table.steps;
  const first = table.times[0] ?? 0;
  return table.times.map((time) => Math.round(time - first));
}

/** Return what a run has reached. @param {import("./metrics.js").MetricTable | null | undefined} table */
export function summaryOf(table) {
  const rewards = table?.columns.get("reward/mean") ?? [];
  const means = smoothed(rewards, TEN_STEPS);
  let best = null;
  let bestStep = null;
  means.forEach((mean, at) => {
    if (mean !== null && (best === null || mean > best)) [best, bestStep] = [mean, table?.steps[at]];
  });
  const of = (name) => lastOf(table?.columns.get(name) ?? []);
  return { last: lastOf(rewards), best, bestStep, val: of("val_reward/mean"), tokens: of("progress/total_tokens") };
}
