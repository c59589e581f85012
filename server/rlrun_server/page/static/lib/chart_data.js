/** Columns of metrics as lines of a chart. Pure. */
import { number } from "./format.js";

/**
 * @typedef {(number | null)[]} Column
 * @typedef {object} Line
 * @property {string} label
 * @property {Column} values
 * @property {boolean} [isPoints]
 * @property {Column} [low] lower end of the band around the line
 * @property {Column} [high]
 */

const MAX_LINES = 24;

/**
 * Return the lines of a chart that have a value. Patterns take the metrics that no earlier series has.
 * @param {import("../components/chart_catalog.js").ChartSpec} spec
 * @param {Map<string, Column>} columns
 * @returns {Line[]}
 */
export function linesOf(spec, columns) {
  const lines = [];
  const taken = new Set();
  for (const { metric, label = metric, isPoints = false } of spec.series) {
    const pattern = patternOf(metric);
    for (const [name, values] of columns) {
      const found = pattern.exec(name);
      if (!found || taken.has(name) || lines.length >= MAX_LINES || !values.some((value) => value !== null)) continue;
      taken.add(name);
      lines.push({ label: filled(label, found.slice(1)), values, isPoints });
    }
  }
  return lines;
}

function patternOf(metric) {
  const parts = metric.split("*").map((part) => part.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"));
  return new RegExp(`^${parts.join("(.+)")}$`, "s");
}

function filled(label, texts) {
  if (!label.includes("*")) return label;
  const rest = [...texts];
  const last = label.split("*").length - 1;
  let at = 0;
  return label.replace(/\*/g, () => {
    at += 1;
    return at === last ? rest.splice(0).join(" @") : rest.shift() ?? "";
  });
}

/**
 * Return the exponential mean, corrected for its start.
 * @param {Column} values
 * @param {number} weight of what was before, 0 to 1
 * @returns {Column}
 */
export function smoothed(values, weight) {
  let mean = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null) return null;
    mean = mean * weight + (1 - weight) * value;
    total = total * weight + (1 - weight);
    return mean / total;
  });
}

/**
 * Return the sums of each column and those before it.
 * @param {Column[]} columns
 * @returns {Column[]}
 */
export function stacked(columns) {
  const sums = columns[0]?.map(() => 0) ?? [];
  return columns.map((column) => column.map((value, at) => (sums[at] += value ?? 0)));
}

/**
 * Return lower and upper ends of the band of a mean: ± 1.96 standard errors.
 * @param {number[]} steps steps of the points; with buckets the last step of each
 * @param {Column} means
 * @param {Map<number, number>} errors standard error by step
 * @returns {{low: Column, high: Column} | null}
 */
export function bandOf(steps, means, errors) {
  if (!errors.size) return null;
  const known = [...errors].sort(([a], [b]) => a - b);
  let next = 0;
  let previous = null;
  const widths = steps.map((step) => {
    let sum = 0;
    let count = 0;
    for (; next < known.length && known[next][0] <= step; next += 1) {
      sum += known[next][1];
      count += 1;
    }
    if (count) previous = sum / count;
    return count ? previous : null;
  });
  const end = (sign) => means.map((mean, at) => (mean === null || widths[at] === null ? null : mean + sign * 1.96 * widths[at]));
  return { low: end(-1), high: end(1) };
}

/**
 * Return what a line shows as one sentence.
 * @param {string} title
 * @param {number[]} steps
 * @param {Line[]} lines
 */
export function sentenceOf(title, steps, lines) {
  const parts = lines.slice(0, 6).map(({ label, values }) => {
    const points = values.flatMap((value, at) => (value === null ? [] : [{ value, at }]));
    if (!points.length) return `${label} has no values`;
    const last = points[points.length - 1];
    const ordered = points.map(({ value }) => value);
    return (
      `${label}: last ${number(last.value)} at step ${steps[last.at]}, from ${number(Math.min(...ordered))} ` +
      `to ${number(Math.max(...ordered))}, ${trendOf(ordered)}`
    );
  });
  const more = lines.length > parts.length ? `. And ${lines.length - parts.length} more lines` : "";
  return `${title}. ${parts.join(". ")}${more}.`;
}

/** Return in which direction the second half of the values is from the first. @param {number[]} values */
export function trendOf(values) {
  if (values.length < 4) return "too short for a trend";
  const half = Math.floor(values.length / 2);
  const change = meanOf(values.slice(half)) - meanOf(values.slice(0, half));
  const span = Math.max(...values) - Math.min(...values);
  if (Math.abs(change) <= span * 0.1) return "steady";
  return change > 0 ? "rising" : "falling";
}

/** @param {Column} values */
export function lastOf(values) {
  for (let at = values.length - 1; at >= 0; at -= 1) if (values[at] !== null) return values[at];
  return null;
}

/** @param {number[]} values */
function meanOf(values) {
  return values.reduce((sum, value) => sum + value, 0) / values.length;
}
