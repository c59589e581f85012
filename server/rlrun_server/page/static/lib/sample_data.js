/** Requests for stored rollouts, and what the page makes of the answers. */
import { request, runPath } from "./api.js";
import { answerCache } from "./cache.js";

const LIMIT = 512;
const STEPS = 2000;
const MAX_PAGES = 10;
const lists = answerCache(24);
const groups = answerCache(48);

/** Statuses by split. */
export const STATUSES = ["trained", "measured", "filtered", "errored", "stale"];
export const SPLITS = { train: "Train", val: "Validation", eval: "Evaluation", filtered: "Filtered" };
export const SORTS = {
  position: "as stored", "reward-desc": "best first", "reward-asc": "worst first", "advantage-desc": "largest advantage",
  "tokens-desc": "longest first", "tokens-asc": "shortest first", "turns-desc": "most turns", "mean-desc": "best groups", "mean-asc": "worst groups",
};

/**
 * @typedef {object} SampleView
 * @property {string} split
 * @property {string} env
 * @property {string} status
 * @property {string} min
 * @property {string} max
 * @property {string} q
 * @property {string} example
 * @property {string} sort
 */

/** @param {URLSearchParams} query @returns {SampleView} */
export function viewOf(query) {
  const of = (name) => query.get(name) ?? "";
  return {
    split: of("split") in SPLITS ? of("split") : "train",
    env: of("env"),
    status: STATUSES.includes(of("status")) ? of("status") : "",
    min: numberText(of("min")),
    max: numberText(of("max")),
    q: of("q").slice(0, 200),
    example: /^-?\d{1,15}$/.test(of("example")) ? of("example") : "",
    sort: of("sort") in SORTS ? of("sort") : "position",
  };
}

function numberText(text) {
  return text !== "" && Number.isFinite(Number(text)) ? text : "";
}

/**
 * Return a function that reads all steps of a split, and from the second time on only those that are new.
 * @param {string} namespace
 * @param {string} run
 * @param {{split: string, env?: string}} selection
 * @returns {(signal: AbortSignal) => Promise<any>}
 */
export function stepReader(namespace, run, { split, env = "" }) {
  const path = `${runPath(namespace, run)}/steps`;
  const isMeasured = split === "val" || split === "eval";
  /** @type {any[]} */
  let known = [];
  return async (signal) => {
    // The last step is read again: its evaluation may have ended later.
    const first = known.at(-1)?.step ?? 0;
    const query = { split, env: isMeasured ? env : "", limit: STEPS, min_step: first || "" };
    let found = await request(path, { query, signal });
    const items = [...found.items];
    for (let page = 1; found.next && page < MAX_PAGES; page += 1) {
      found = await request(path, { query: { ...query, cursor: found.next }, signal });
      items.push(...found.items);
    }
    known = [...known.filter(({ step }) => step < first), ...items];
    return { ...found, items: known };
  };
}

/** Return the rollouts of a step that the view wants. @param {SampleView} view */
export function readList(namespace, run, step, view) {
  const [sort, order = "asc"] = view.sort.split("-");
  const query = {
    split: view.split, env: view.env, status: view.status, min_reward: view.min, max_reward: view.max, q: view.q, example: view.example,
    sort: sort === "position" ? "" : sort, order: sort === "position" ? "" : order, limit: LIMIT,
  };
  const path = `${runPath(namespace, run)}/steps/${step}/samples`;
  // Not with the signal of a component: another one may wait for the same answer.
  return lists(JSON.stringify([path, query]), () => request(path, { query }));
}

export function readGroup(namespace, run, step, split, group) {
  const path = `${runPath(namespace, run)}/steps/${step}/groups/${encodeURIComponent(group)}`;
  return groups(`${path}:${split}`, () => request(path, { query: { split } }));
}

/** Return groups in the order of their first rollout in the list. Pure. */
export function groupsOf(list) {
  const infos = new Map(list.groups.map((info) => [info.group, info]));
  /** @type {Map<string, {info: any, items: any[]}>} */
  const found = new Map();
  for (const item of list.items) {
    if (!found.has(item.group)) found.set(item.group, { info: infos.get(item.group), items: [] });
    found.get(item.group)?.items.push(item);
  }
  return [...found.values()].filter(({ info }) => info);
}

/** Steps of a list without repetition, with the mean over environments. Pure. */
export function stripOf(items) {
  /** @type {Map<number, {step: number, sum: number, weight: number, count: number, low: number, high: number}>} */
  const found = new Map();
  for (const { step, reward, counts } of items) {
    const count = Object.values(counts ?? {}).reduce((sum, one) => sum + one, 0);
    const entry = found.get(step) ?? { step, sum: 0, weight: 0, count: 0, low: Infinity, high: -Infinity };
    if (reward) {
      entry.sum += reward.mean * (count || 1);
      entry.weight += count || 1;
      entry.low = Math.min(entry.low, reward.quantiles[2] ?? reward.mean);
      entry.high = Math.max(entry.high, reward.quantiles[4] ?? reward.mean);
    }
    entry.count += count;
    found.set(step, entry);
  }
  return [...found.values()].map(({ step, sum, weight, count, low, high }) => ({ step, count, mean: weight ? sum / weight : null, low, high }));
}

/** Text of a message: its content, or the text parts of it. Pure. */
export function textOf(message) {
  const content = message?.content;
  if (typeof content === "string") return content;
  if (!Array.isArray(content)) return content === null || content === undefined ? "" : JSON.stringify(content, null, 2);
  return content.map((part) => (typeof part?.text === "string" ? part.text : `[${part?.type ?? "part"}]`)).join("\n");
}

/** Calls of tools in a message. Pure. */
export function callsOf(message) {
  const calls = Array.isArray(message?.tool_calls) ? message.tool_calls : [];
  return calls.map((call) => {
    const found = call?.function ?? call ?? {};
    const args = typeof found.arguments === "string" ? found.arguments : JSON.stringify(found.arguments ?? {}, null, 2);
    return { name: String(found.name ?? "tool"), args };
  });
}

/** All that the policy wrote, as one text. Pure. */
export function completionText(record) {
  const parts = (record?.completion ?? []).map((message) => {
    const calls = callsOf(message).map(({ name, args }) => `${name}(${args})`);
    const text = [textOf(message), ...calls].filter(Boolean).join("\n");
    return (record.completion.length > 1 ? `${message.role}: ${text}` : text);
  });
  return parts.join("\n\n");
}
