/** How the charts of a page are shown. The address holds it. */
import { html, useState } from "../lib/html.js";
import { useKeys } from "../lib/keys.js";
import { setQuery } from "../lib/router.js";
import { Range } from "./range.js";

/** @param {URLSearchParams} query */
export function chartView(query) {
  const smoothing = Number(query.get("smooth"));
  return {
    x: /** @type {"step" | "time"} */ (query.get("x") === "time" ? "time" : "step"),
    smoothing: smoothing > 0 && smoothing < 1 ? smoothing : 0,
    isLog: query.has("log"),
    isTable: query.has("table"),
    hasMarks: !query.has("nomarks"),
  };
}

/** @param {{view: any, hasMarks?: boolean, names?: string[], own?: string[]}} props */
export function ChartControls({ view, hasMarks, names, own = [] }) {
  useKeys({ t: () => setQuery({ table: view.isTable ? "" : 1 }) });
  return html`<div class="toolbar chart-controls" role="group" aria-label="Charts">
    <div class="segments" role="group" aria-label="Axis">
      <button class="small" aria-pressed=${String(view.x === "step")} onClick=${() => setQuery({ x: "" })}>Steps</button>
      <button class="small" aria-pressed=${String(view.x === "time")} onClick=${() => setQuery({ x: "time" })}>Time</button>
    </div>
    <label class="inline-field">
      <span>Smoothing</span>
      <${Range} value=${view.smoothing} min=${0} max=${0.95} step=${0.05} onValue=${(value) => setQuery({ smooth: value || "" })} />
      <span class="smoothing">${view.smoothing || "off"}</span>
    </label>
    <button class="small" aria-pressed=${String(view.isLog)} onClick=${() => setQuery({ log: view.isLog ? "" : 1 })} title="Switch between linear and logarithmic">Log</button>
    <button class="small" aria-pressed=${String(view.isTable)} onClick=${() => setQuery({ table: view.isTable ? "" : 1 })} title="Tables instead of charts (t)">Tables</button>
    ${hasMarks &&
    html`<button class="small" aria-pressed=${String(view.hasMarks)} onClick=${() => setQuery({ nomarks: view.hasMarks ? 1 : "" })}>▼ checkpoints ■ adapters</button>`}
    ${names && names.length > 0 && html`<${MetricPicker} names=${names} own=${own} />`}
  </div>`;
}

function MetricPicker({ names, own }) {
  const [text, setText] = useState("");
  const add = (event) => {
    const name = event.currentTarget.value;
    setText(name);
    if (!names.includes(name)) return;
    if (!own.includes(name)) setQuery({ m: [...own, name] });
    setText("");
  };
  return html`
    <input list="metric-names" class="grow picker" aria-label="Add a chart of any metric" placeholder="Add any of ${names.length} metrics" value=${text} onInput=${add} />
    <datalist id="metric-names">${names.map((name) => html`<option key=${name} value=${name} />`)}</datalist>
  `;
}
