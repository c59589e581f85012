/** What is known about the use of the cluster: active runs by namespace and model. */
import { Empty, Loaded } from "../components/problem.js";
import { PHASES, Phase } from "../components/phase.js";
import { request } from "../lib/api.js";
import { duration, plural } from "../lib/format.js";
import { html } from "../lib/html.js";
import { useResource } from "../lib/resource.js";
import { href } from "../lib/router.js";
import { useTitle } from "../lib/title.js";

const LIMIT = 500;
const MAX_PAGES = 10;

export function UsagePage() {
  useTitle("Usage");
  const runs = useResource("usage", async (signal) => {
    const items = [];
    let cursor = "";
    let total = 0;
    for (let page = 0; page < MAX_PAGES; page += 1) {
      const found = await request("runs", { query: { limit: LIMIT, cursor }, signal });
      items.push(...found.items);
      total = found.total;
      cursor = found.next;
      if (!cursor) break;
    }
    return { items, total };
  }, { interval: 60_000 });
  return html`
    <h1>Usage</h1>
    <div class="notice"><strong>GPU hours, tokens and storage are not counted yet</strong>
      <p>The server has no usage records so far. Below is what follows from the runs that exist: those that were deleted are not in it.</p></div>
    <${Loaded} resource=${runs} what="runs">
      ${({ items, total }) =>
        items.length
          ? html`
              <${Table} title="By namespace" name="Namespace" rows=${rowsBy(items, ({ namespace }) => namespace)} link=${(key) => href(["runs"], { ns: key })} />
              <${Table} title="By model" name="Model" rows=${rowsBy(items, ({ model }) => model)} />
              ${items.length < total && html`<p class="muted">The newest ${items.length} of ${plural(total, "run")}.</p>`}
            `
          : html`<div class="card"><${Empty} title="No runs yet" /></div>`}
    <//>
  `;
}

function Table({ title, name, rows, link }) {
  const phases = PHASES.filter((phase) => rows.some(({ counts }) => counts[phase]));
  return html`<section class="card" aria-label=${title}>
    <h2>${title}</h2>
    <div class="scroll">
      <table>
        <caption class="visually-hidden">${title}</caption>
        <thead>
          <tr>
            <th scope="col">${name}</th><th scope="col" class="num">Runs</th>
            ${phases.map((phase) => html`<th scope="col" class="num" key=${phase}><${Phase} phase=${phase} /></th>`)}
            <th scope="col" class="num">Steps</th><th scope="col" class="num">Time with pods, about</th>
          </tr>
        </thead>
        <tbody>
          ${rows.map(
            ({ key, total, counts, steps, seconds }) =>
              html`<tr key=${key}>
                <th scope="row">${link ? html`<a href=${link(key)}>${key}</a>` : key}</th><td class="num">${total}</td>
                ${phases.map((phase) => html`<td class="num" key=${phase}>${counts[phase] ?? ""}</td>`)}
                <td class="num">${steps.toLocaleString("en-US")}</td><td class="num">${duration(seconds)}</td>
              </tr>`,
          )}
        </tbody>
      </table>
    </div>
  </section>`;
}

/** Return sums by key, largest first. Pure. */
export function rowsBy(runs, keyOf, now = Date.now()) {
  const rows = new Map();
  for (const run of runs) {
    const key = keyOf(run);
    const row = rows.get(key) ?? { key, total: 0, counts: {}, steps: 0, seconds: 0 };
    rows.set(key, row);
    row.total += 1;
    row.counts[run.phase] = (row.counts[run.phase] ?? 0) + 1;
    row.steps += run.step;
    const end = run.completedAt ? Date.parse(run.completedAt) : now;
    if (run.startedAt) row.seconds += Math.max(0, (end - Date.parse(run.startedAt)) / 1000);
  }
  return [...rows.values()].sort((a, b) => b.seconds - a.seconds || b.total - a.total);
}
