/** Filters of rollouts. */
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { setQuery } from "../lib/router.js";
import { SORTS, SPLITS, STATUSES } from "../lib/sample_data.js";

/** @param {{view: import("../lib/sample_data.js").SampleView, splits: string[], environments: string[]}} props */
export function SampleFilters({ view, splits, environments }) {
  const set = (changes) => setQuery({ ...changes, group: "", rollout: "", other: "" });
  const shown = Object.keys(SPLITS).filter((split) => splits.includes(split) || split === view.split);
  const choices = view.env && !environments.includes(view.env) ? [view.env, ...environments] : environments;
  return html`<div class="toolbar">
    <div class="segments" role="group" aria-label="Split">
      ${shown.map((split) => html`<button key=${split} class="small" aria-pressed=${String(view.split === split)} onClick=${() => set({ split: split === "train" ? "" : split, status: "", step: "" })}>${SPLITS[split]}</button>`)}
    </div>
    ${choices.length > 1 &&
    html`<${Choice} label="Environment" value=${view.env} onChange=${(env) => set({ env })} options=${[["", "all"], ...choices.map((env) => [env, env])]} />`}
    <${Choice} label="Status" value=${view.status} onChange=${(status) => set({ status })} options=${[["", "any"], ...STATUSES.map((status) => [status, status])]} />
    <span class="inline-field" role="group" aria-label="Reward">
      <span class="muted">Reward</span>
      <${Delayed} label="Least reward" placeholder="from" isNumber value=${view.min} onChange=${(min) => set({ min })} />
      <${Delayed} label="Greatest reward" placeholder="to" isNumber value=${view.max} onChange=${(max) => set({ max })} />
    </span>
    <${Choice} label="Order" value=${view.sort} onChange=${(sort) => set({ sort: sort === "position" ? "" : sort })} options=${Object.entries(SORTS)} />
    <${Delayed} label="Search in answers, ids and causes" placeholder="Search" value=${view.q} onChange=${(q) => set({ q })} />
    ${view.example && html`<button class="small" onClick=${() => set({ example: "" })}>Example ${view.example} <span aria-hidden="true">✕</span><span class="visually-hidden">: show all</span></button>`}
  </div>`;
}

function Choice({ label, value, options, onChange }) {
  return html`<label class="inline-field">
    <span>${label}</span>
    <select value=${value} onChange=${(event) => onChange(event.currentTarget.value)}>
      ${options.map(([id, text]) => html`<option key=${id} value=${id}>${text}</option>`)}
    </select>
  </label>`;
}

/** Field whose value counts when the user pauses. */
function Delayed({ label, placeholder, value, isNumber, onChange }) {
  const [text, setText] = useState(value);
  const timer = useRef(0);
  useEffect(() => setText(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const change = (event) => {
    const next = event.currentTarget.value;
    setText(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onChange(next.trim()), 350);
  };
  return html`<input
    type=${isNumber ? "number" : "search"} step="any" class=${isNumber ? "bound" : ""} aria-label=${label} placeholder=${placeholder} maxlength="200"
    value=${text} onInput=${change}
  />`;
}
