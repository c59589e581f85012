/** Metrics of a run in components. */
import { request, runPath } from "./api.js";
import { useEffect, useMemo } from "./html.js";
import { useResource } from "./resource.js";
import { throttled } from "./throttle.js";

const POINTS = 500;
const RELOAD_MS = 3000;

/**
 * @typedef {object} MetricTable
 * @property {number[]} steps
 * @property {number[]} times seconds since 1970
 * @property {Map<string, import("./chart_data.js").Column>} columns
 * @property {boolean} isBucketed each point stands for several steps
 * @property {number} totalSteps
 * @property {boolean} isStale
 */

/** @param {string} namespace @param {string} run @param {string[]} names @param {AbortSignal} [signal] @returns {Promise<MetricTable>} */
export async function readMetrics(namespace, run, names, signal, points = POINTS) {
  const found = await request(`${runPath(namespace, run)}/metrics`, { query: { name: names, points }, signal });
  return tableOf(found);
}

/** @returns {MetricTable} */
export function tableOf(found) {
  return {
    steps: found.steps,
    times: secondsOf(found.times),
    columns: new Map(found.series.map(({ name, values }) => [name, values])),
    isBucketed: found.bucketed,
    totalSteps: found.totalSteps,
    isStale: found.isStale,
  };
}

/** uPlot needs times that never go back; those of repeated steps may. @param {string[]} times */
function secondsOf(times) {
  let last = 0;
  return times.map((time) => {
    const at = Date.parse(time) / 1000;
    last = Number.isFinite(at) ? Math.max(at, last) : last;
    return last;
  });
}

/**
 * @param {{namespace: string, name: string, names: string[] | null, changes: import("../pages/run.js").Changes, isLive: boolean}} props names null: later
 */
export function useMetrics({ namespace, name, names, changes, isLive }) {
  const key = names === null ? null : JSON.stringify([namespace, name, names]);
  const resource = useResource(key, (signal) => readMetrics(namespace, name, names ?? [], signal));
  useFollow(changes, "metrics", resource.reload, isLive);
  return resource;
}

/** Read again when a topic of the run has changed. */
export function useFollow(changes, topic, reload, isOn = true) {
  const act = useMemo(() => throttled(reload, RELOAD_MS), [reload]);
  useEffect(() => (isOn ? changes.follow(topic, act) : undefined), [changes, topic, act, isOn]);
}
