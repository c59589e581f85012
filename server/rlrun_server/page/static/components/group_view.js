/** Rollouts of one group: one, all side by side, or the differences of two. */
import { copy } from "../lib/copy.js";
import { fixed } from "../lib/format.js";
import { html } from "../lib/html.js";
import { useKeys } from "../lib/keys.js";
import { useResource } from "../lib/resource.js";
import { setQuery, useRoute } from "../lib/router.js";
import { completionText, readGroup } from "../lib/sample_data.js";
import { ExampleHistory } from "./example_history.js";
import { Message } from "./message.js";
import { Empty, Loaded } from "./problem.js";
import { RolloutFacts, RolloutView } from "./rollout_view.js";
import { TextDiff } from "./text_diff.js";

const LETTERS = "abcdefghijklmnopqrstuvwxyz";
const MODES = { one: "One", side: "Side by side", diff: "Differences" };

/** Letter of a rollout in its group. @param {number} at */
export function letterOf(at) {
  return at < LETTERS.length ? LETTERS[at] : String(at + 1);
}

/** @param {{namespace: string, name: string, step: number, split: string, info: any, matching: any[]}} props */
export function GroupView({ namespace, name, step, split, info, matching }) {
  const group = useResource(`${namespace}/${name}/${step}/${split}/${info.group}`, () => readGroup(namespace, name, step, split, info.group));
  return html`<section class="sample-detail card pad stack" aria-label=${`Group ${info.group}`}>
    <h2>Example ${info.example} <span class="muted">of ${info.environment}</span></h2>
    <p class="muted sub">
      Group <span class="mono">${info.group}</span>, mean reward ${fixed(info.mean)}${info.policyVersion !== undefined && info.policyVersion !== null ? `, policy v${info.policyVersion}` : ""}${info.staleness ? ` (${info.staleness} behind)` : ""}
    </p>
    <${Loaded} resource=${group} what="rollouts">
      ${(found) => html`<${Rollouts} found=${found} matching=${matching} />`}
    <//>
    <${ExampleHistory} namespace=${namespace} name=${name} step=${step} split=${split} info=${info} />
  </section>`;
}

function Rollouts({ found, matching }) {
  const { query } = useRoute();
  const { items } = found;
  // Records have the order of the items. If some are missing, their ids tell.
  const recordAt = (at) =>
    (found.records.length === items.length ? found.records[at] : found.records.find(({ rollout }) => rollout === items[at].rollout)) ?? null;
  const first = items.findIndex((item) => item.rollout === matching[0]?.rollout);
  const indexOf = (id, fallback) => {
    const at = items.findIndex((item) => item.rollout === id);
    return at < 0 ? fallback : at;
  };
  const at = indexOf(query.get("rollout"), Math.max(0, first));
  const other = indexOf(query.get("other"), farthest(items, at));
  const mode = String(query.get("view")) in MODES ? query.get("view") : "one";
  const choose = (next) => items[next] && setQuery({ rollout: items[next].rollout });
  const setMode = (next) => setQuery({ view: next === "one" || next === mode ? "" : next });
  useKeys({
    j: () => choose(at + 1),
    k: () => choose(at - 1),
    s: () => setMode("side"),
    d: () => setMode("diff"),
    c: () => copy(JSON.stringify(recordAt(at) ?? items[at], null, 2)),
  });
  const record = recordAt(at);
  return html`
    ${found.problem && html`<div class="notice warning"><p>${found.problem}</p></div>`}
    <${Prompt} records=${found.records} />
    <div class="row between">
      <div class="segments rollouts" role="group" aria-label="Rollouts">
        ${items.map((item, index) => {
          const isOn = mode !== "side" && (index === at || (mode === "diff" && index === other));
          return html`<button
            key=${item.rollout} class="small" aria-pressed=${String(isOn)} title=${`Rollout ${item.rollout}${item.agent ? ` of ${item.agent}` : ""}`}
            onClick=${() => setQuery(mode === "diff" && index !== at ? { other: item.rollout } : { rollout: item.rollout, other: "" })}
          ><b>${letterOf(index)}</b> ${item.agent ? `${item.agent} ` : ""}${item.reward === undefined || item.reward === null ? item.status : fixed(item.reward, 2)}</button>`;
        })}
      </div>
      <div class="row">
        <div class="segments" role="group" aria-label="View">
          ${Object.entries(MODES).map(
            ([id, text]) =>
              html`<button key=${id} class="small" aria-pressed=${String(mode === id)} disabled=${items.length < 2 && id !== "one"} onClick=${() => setMode(id)}>${text}</button>`,
          )}
        </div>
        <button class="small" onClick=${() => copy(JSON.stringify(record ?? items[at], null, 2))} title="Key c">Copy JSON</button>
      </div>
    </div>
    ${mode === "one" && html`<${RolloutView} item=${items[at]} record=${record} letter=${letterOf(at)} />`}
    ${mode === "side" &&
    html`<div class="siblings" tabindex="0" role="region" aria-label="Rollouts side by side">
      ${items.map((item, index) => html`<${RolloutView} key=${item.rollout} item=${item} record=${recordAt(index)} letter=${letterOf(index)} isNarrow />`)}
    </div>`}
    ${mode === "diff" &&
    (record && recordAt(other)
      ? html`<div class="diff-facts">
            <${RolloutFacts} item=${items[at]} record=${record} letter=${letterOf(at)} />
            <${RolloutFacts} item=${items[other]} record=${recordAt(other)} letter=${letterOf(other)} />
          </div>
          <${TextDiff} before=${completionText(record)} after=${completionText(recordAt(other))} names=${[letterOf(at), letterOf(other)]} />`
      : html`<${Empty} title="No texts to compare" />`)}
  `;
}

/** Rollout whose reward is farthest from that of another. */
function farthest(items, at) {
  const own = items[at]?.reward ?? 0;
  const distances = items.map(({ reward }, index) => (index === at ? -1 : Math.abs((reward ?? own) - own)));
  return distances.indexOf(Math.max(...distances));
}

function Prompt({ records }) {
  const record = records.find(({ prompt }) => prompt?.length);
  if (!record) return null;
  const isShort = JSON.stringify(record.prompt).length < 3000;
  return html`<details class="prompt" open=${isShort}>
    <summary>Prompt${record.prompt.length > 1 ? ` (${record.prompt.length} messages)` : ""}</summary>
    ${record.prompt.map((message, at) => html`<${Message} key=${at} message=${message} />`)}
  </details>
  ${record.answer !== undefined && record.answer !== null &&
  html`<div class="answer"><span class="muted">Expected answer</span><pre>${typeof record.answer === "string" ? record.answer : JSON.stringify(record.answer, null, 2)}</pre></div>`}`;
}
