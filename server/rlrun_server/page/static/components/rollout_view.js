/** One rollout: reward by function, facts, and what the policy wrote. */
import { duration, fixed, number } from "../lib/format.js";
import { html } from "../lib/html.js";
import { Message } from "./message.js";

/** @param {{item: any, record: any, letter: string, isNarrow?: boolean}} props */
export function RolloutView({ item, record, letter, isNarrow }) {
  return html`<article class=${`rollout ${isNarrow ? "narrow" : ""}`} aria-label=${`Rollout ${letter}`}>
    <${RolloutFacts} item=${item} record=${record} letter=${letter} />
    ${record?.error && html`<div class="problem"><strong>${record.error.reason}</strong><p>${record.error.message}</p></div>`}
    ${record
      ? html`<div class="messages">${record.completion?.map((message, at) => html`<${Message} key=${at} message=${message} />`)}</div>`
      : html`<p class="muted">The texts of this rollout are not stored. It begins: ${item.text || "–"}</p>`}
    ${record?.cut?.length > 0 &&
    html`<p class="age">Shortened when it was stored: ${record.cut.map(({ field, removed }) => `${field} (${removed.toLocaleString("en-US")} less)`).join(", ")}</p>`}
    ${record?.redacted?.length > 0 && html`<p class="muted sub">Not stored, as the run's spec says: ${record.redacted.join(", ")}</p>`}
    ${record?.info !== undefined && record?.info !== null &&
    html`<details><summary>More of the example</summary><pre class="code">${JSON.stringify(record.info, null, 2)}</pre></details>`}
  </article>`;
}

/** @param {{item: any, record: any, letter: string}} props */
export function RolloutFacts({ item, record, letter }) {
  const facts = factsOf(item, record);
  return html`<div class="rollout-head">
    <div class="row">
      <span class="letter">${letter}</span>
      ${item.agent && html`<span><span class="muted">agent</span> <b>${item.agent}</b></span>`}
      <span class="reward"><span class="muted">reward</span> <b>${fixed(item.reward)}</b></span>
      ${item.status !== "trained" && item.status !== "measured" && html`<span class="phase failed">${item.status}${item.cause ? `: ${item.cause}` : ""}</span>`}
      ${item.isTruncated && html`<span class="phase pending">cut off</span>`}
    </div>
    <${Functions} record=${record} item=${item} />
    <ul class="plain fact-list">${facts.map(([name, value]) => html`<li key=${name}><span class="muted">${name}</span> ${value}</li>`)}</ul>
  </div>`;
}

/** Rewards of the single functions, with their share of the sum. */
function Functions({ record, item }) {
  const weighted = Object.entries(record?.rewards ?? {});
  const plain = weighted.length ? [] : Object.entries(item.rewards ?? {});
  const metrics = Object.entries(record?.metrics ?? {}).filter(([name]) => !(name in (record?.rewards ?? {})));
  if (!weighted.length && !plain.length && !metrics.length) return null;
  return html`<table class="functions">
    <caption class="visually-hidden">Reward functions and metrics</caption>
    <tbody>
      ${weighted.map(
        ([name, { value, weight }]) =>
          html`<tr key=${name}>
            <th scope="row">${name}</th><td class="num">${number(value)}</td><td class="muted">× ${number(weight)}</td><td class="num">${fixed(value * weight)}</td>
          </tr>`,
      )}
      ${plain.map(([name, value]) => html`<tr key=${name}><th scope="row">${name}</th><td class="num">${number(value)}</td><td /><td /></tr>`)}
      ${metrics.slice(0, 64).map(([name, value]) => html`<tr key=${`metric ${name}`}><th scope="row">${name}</th><td class="num">${number(value)}</td><td class="muted">metric</td><td /></tr>`)}
    </tbody>
  </table>`;
}

function factsOf(item, record) {
  const { logprob, ms = {} } = record ?? {};
  return [
    ["advantage", item.advantage === undefined || item.advantage === null ? null : `${item.advantage > 0 ? "+" : ""}${fixed(item.advantage)}`],
    ["tokens", item.completionTokens === undefined || item.completionTokens === null ? null : `${item.completionTokens} after ${item.promptTokens ?? "?"}`],
    ["turns", item.turns > 1 ? item.turns : null],
    ["log-probability", logprob ? `${number(logprob.mean, 3)}, least ${number(logprob.min, 3)}` : null],
    ["generation", ms.generate === undefined || ms.generate === null ? null : duration(ms.generate / 1000)],
    ["scoring", ms.score === undefined || ms.score === null ? null : duration(ms.score / 1000)],
    ["stop", item.stopCondition ?? null],
  ].filter(([, value]) => value !== null);
}
