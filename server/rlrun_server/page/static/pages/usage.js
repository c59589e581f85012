/** GPU time of runs and serving pools, by run, namespace, user or model. */
import { Empty, Loaded } from "../components/problem.js";
import { ScrollRegion } from "../components/scroll_region.js";
import { pathOf, request } from "../lib/api.js";
import { dateTime, duration, number, plural } from "../lib/format.js";
import { html } from "../lib/html.js";
import { useResource } from "../lib/resource.js";
import { href, setQuery, useRoute } from "../lib/router.js";
import { useTitle } from "../lib/title.js";

const GROUPS = { run: "Runs", namespace: "Namespaces", user: "Users", model: "Models" };
/** Days back; empty: this month. */
const PERIODS = { "": "this month", 1: "one day", 7: "7 days", 30: "30 days", 365: "365 days" };
const DAY_MS = 86_400_000;

export function UsagePage() {
  useTitle("Usage");
  const { query } = useRoute();
  const by = String(query.get("by")) in GROUPS ? query.get("by") : "run";
  const days = String(query.get("days")) in PERIODS ? query.get("days") : "";
  const namespace = query.get("ns") ?? "";
  const path = namespace ? `${pathOf("namespaces", namespace)}/usage` : "usage";
  const namespaces = useResource("namespaces", (signal) => request("namespaces", { signal }));
  const usage = useResource(
    JSON.stringify([path, by, days]),
    (signal) => request(path, { query: { by, since: days ? new Date(Date.now() - Number(days) * DAY_MS).toISOString() : "" }, signal }),
    { interval: 30_000 },
  );
  return html`
    <h1>Usage</h1>
    <div class="toolbar">
      <label class="inline-field"><span>Namespace</span>
        <select value=${namespace} onChange=${(event) => setQuery({ ns: event.currentTarget.value })}>
          <option value="">All of mine</option>
          ${namespaces.data?.items.map(({ name }) => html`<option key=${name} value=${name}>${name}</option>`)}
        </select>
      </label>
      <div class="segments" role="group" aria-label="Group by">
        ${Object.entries(GROUPS).map(([id, title]) => html`<button key=${id} aria-pressed=${String(by === id)} onClick=${() => setQuery({ by: id === "run" ? "" : id })}>${title}</button>`)}
      </div>
      <label class="inline-field"><span>Time</span>
        <select value=${days} onChange=${(event) => setQuery({ days: event.currentTarget.value })}>
          ${Object.entries(PERIODS).map(([id, text]) => html`<option key=${id} value=${id}>${text}</option>`)}
        </select>
      </label>
    </div>
    <${Loaded} resource=${usage} what="usage">
      ${(found) =>
        found.rows.length
          ? html`<${Totals} total=${found.total} /><${Rows} found=${found} by=${by} />`
          : html`<div class="card"><${Empty} title="No runs" level=${2}><p>None held GPUs in this time.</p><//></div>`}
    <//>
    <p class="muted">
      GPU time counts from the admission of an attempt to its end, as Kubernetes saw it. Deleted runs are included, and serving pools until the last full hour. Storage is not.
    </p>
  `;
}

function Totals({ total }) {
  const tiles = [
    ["GPU hours", hours(total.gpuSeconds)],
    ["GPUs now", number(total.gpus)],
    ["Active time", duration(total.activeSeconds)],
    ["Runs", number(total.runs)],
  ];
  return html`<section class="tiles" aria-label="Totals">
    ${tiles.map(([name, value]) => html`<div class="card tile" key=${name}><div class="name">${name}</div><div class="value">${value}</div></div>`)}
  </section>`;
}

function Rows({ found, by }) {
  return html`<section class="card" aria-label=${GROUPS[by]}>
    <${ScrollRegion} label="Table: Usage">
      <table>
        <caption class="visually-hidden">Usage of ${GROUPS[by].toLowerCase()}, the greatest first, on ${dateTime(found.time)}</caption>
        <thead>
          <tr>
            ${by !== "model" && html`<th scope="col">${{ run: "Run", namespace: "Namespace", user: "User" }[by]}</th>`}
            ${by === "run" && html`<th scope="col">User</th>`}
            ${(by === "run" || by === "model") && html`<th scope="col">Model</th>`}
            ${by !== "run" && html`<th scope="col" class="num">Runs</th>`}
            <th scope="col" class="num">GPUs now</th><th scope="col" class="num">Active time</th><th scope="col" class="num">GPU hours</th>
          </tr>
        </thead>
        <tbody>
          ${found.rows.map(
            (row) =>
              html`<tr key=${row.uid ?? row.namespace ?? row.user ?? row.model}>
                ${by === "run" && html`<th scope="row">${row.kind === "Run" ? html`<a href=${href(["runs", row.namespace, row.run])}>${row.run}</a>` : row.run} <span class="muted">${row.namespace}</span></th>`}
                ${by === "namespace" && html`<th scope="row"><a href=${href(["runs"], { ns: row.namespace })}>${row.namespace}</a></th>`}
                ${by === "user" && html`<th scope="row">${row.user || "unknown"}</th>`}
                ${by === "run" && html`<td>${row.user || "unknown"}</td>`}
                ${(by === "run" || by === "model") && html`<td>${row.model}</td>`}
                ${by !== "run" && html`<td class="num">${row.runs}</td>`}
                <td class="num">${row.gpus}</td><td class="num">${duration(row.activeSeconds)}</td><td class="num">${hours(row.gpuSeconds)}</td>
              </tr>`,
          )}
        </tbody>
      </table>
    <//>
    ${found.rows.length < found.total.runs && found.rows.length >= 500 && html`<p class="more muted">The greatest 500 of ${plural(found.total.runs, "run")}.</p>`}
    ${found.isComplete === false && html`<p class="more muted">There may be more. Choose one namespace, or a shorter time.</p>`}
  </section>`;
}

function hours(seconds) {
  return number(Math.round(seconds / 36) / 100);
}
