/** Comparison of runs: what differs in their configuration, and their charts on the same axes. */
import { Chart } from "../components/chart.js";
import { titleOf } from "../components/chart_catalog.js";
import { ChartControls, chartView } from "../components/chart_controls.js";
import { LineKey } from "../components/chart.js";
import { Phase } from "../components/phase.js";
import { Empty, Loaded, ProblemView } from "../components/problem.js";
import { ScrollRegion } from "../components/scroll_region.js";
import { request } from "../lib/api.js";
import { comparedLines, summaryOf } from "../lib/compare_data.js";
import { age, duration, fixed, number, plural, steps } from "../lib/format.js";
import { html, useMemo, useState } from "../lib/html.js";
import { readMetrics } from "../lib/metrics.js";
import { useResource } from "../lib/resource.js";
import { href, setQuery, useRoute } from "../lib/router.js";
import { useTitle } from "../lib/title.js";

const MAX_RUNS = 20;
const POINTS = 400;
const INTERVAL_MS = 15_000;
/** Charts that are shown at first, as far as all runs have them. */
const RESULTS = ["progress/total_tokens"];
const FIRST = ["reward/mean", "val_reward/mean", "loss/mean", "entropy/all/mean", "mismatch_kl/all/mean", "completion_len/mean", "time/step", "perf/throughput"];
const MAX_CHARTS = 16;

export function ComparePage() {
  useTitle("Compare");
  const { query } = useRoute();
  const runs = [...new Set(query.getAll("run"))].slice(0, MAX_RUNS);
  return html`
    <h1>Compare</h1>
    <${RunChoice} runs=${runs} />
    ${runs.length > 1
      ? html`<${Comparison} key=${runs.join()} runs=${runs} />`
      : html`<div class="card"><${Empty} title=${runs.length ? "Choose one run more" : "Choose two runs or more"} level=${2}>
          <p>Add them above, or select them in the list of runs and press Compare.</p>
          <a class="button" href=${href(["runs"])}>To the runs</a>
        <//></div>`}
  `;
}

function RunChoice({ runs }) {
  const [text, setText] = useState("");
  const known = useResource("all-runs", (signal) => request("runs", { query: { limit: 200 }, signal }));
  const ids = (known.data?.items ?? []).map(({ namespace, name }) => `${namespace}/${name}`).filter((id) => !runs.includes(id));
  const add = (event) => {
    const id = event.currentTarget.value;
    setText(id);
    if (!ids.includes(id)) return;
    setText("");
    setQuery({ run: [...runs, id] });
  };
  return html`<div class="toolbar">
    ${runs.map(
      (id, at) =>
        html`<span class="chip" key=${id}><${LineKey} at=${at} />
          <a href=${href(["runs", ...id.split("/")])}>${id}</a>
          <button class="quiet small" aria-label=${`Remove ${id}`} onClick=${() => setQuery({ run: runs.filter((one) => one !== id) })}>✕</button>
        </span>`,
    )}
    ${runs.length < MAX_RUNS &&
    html`<input list="runs-to-compare" class="picker" aria-label="Add a run" placeholder="Add a run" value=${text} onInput=${add} />
      <datalist id="runs-to-compare">${ids.map((id) => html`<option key=${id} value=${id} />`)}</datalist>`}
  </div>`;
}

function Comparison({ runs }) {
  const comparison = useResource(runs.join(), (signal) => request("compare", { query: { run: runs }, signal }), { interval: INTERVAL_MS });
  return html`<${Loaded} resource=${comparison} what="comparison">
    ${(found) => html`
      ${found.problems?.map((text) => html`<div key=${text} class="notice warning"><p>${text}</p></div>`)}
      <${ComparedCharts} runs=${runs} names=${found.metricNames} isLive=${found.runs.some(({ phase }) => phase === "Running")}>
        ${(tables) => html`<${Results} found=${found} tables=${tables} /><${Differences} found=${found} />`}
      <//>
    `}
  <//>`;
}

function ComparedCharts({ runs, names, isLive, children }) {
  const { query } = useRoute();
  const view = chartView(query);
  const wanted = query.getAll("m");
  const shown = useMemo(() => {
    const first = FIRST.filter((name) => names.includes(name));
    const rewards = names.filter((name) => /^reward\/.+\/mean$|^eval\/.+\/avg@/s.test(name));
    return [...new Set([...wanted, ...first, ...rewards])].slice(0, MAX_CHARTS);
  }, [names, wanted.join()]);
  const metrics = useResource(
    JSON.stringify([runs, shown]),
    (signal) =>
      Promise.all(
        runs.map((id) => {
          const [namespace, name] = id.split("/");
          return readMetrics(namespace, name, [...shown, ...RESULTS], signal, POINTS).catch((error) => {
            if (signal.aborted) throw error;
            return null;
          });
        }),
      ),
    { interval: isLive ? INTERVAL_MS : 0, keepsOld: true },
  );
  const tables = metrics.data ?? [];
  const charts = useMemo(
    () => (tables.length === runs.length ? shown.map((name) => ({ name, ...comparedLines(name, tables, runs, view.x) })) : []),
    [metrics.data, shown, view.x],
  );
  return html`
    ${children(metrics.data)}
    <${ChartControls} view=${view} names=${names} own=${wanted} />
    ${metrics.problem && html`<${ProblemView} problem=${metrics.problem} onRetry=${metrics.reload} />`}
    ${metrics.data?.some((table) => table === null) && html`<p class="age">The metrics of some runs could not be read; their lines are missing.</p>`}
    ${!metrics.data && !metrics.problem && html`<p class="loading" role="status">Loading charts …</p>`}
    <div class="charts">
      ${charts
        .filter(({ lines }) => lines.length)
        .map(
          ({ name, steps, times, lines }) =>
            html`<div class="chart-place" key=${name}>
              <${Chart} title=${titleOf(name)} about=${name} steps=${steps} times=${times} lines=${lines} view=${view} isLog=${name.startsWith("mismatch_kl/")} syncKey="compare" isElapsed />
            </div>`,
        )}
    </div>
  `;
}

function Results({ found, tables }) {
  return html`<section class="card" aria-labelledby="results">
    <h2 id="results">Results</h2>
    <${ScrollRegion} label="Table: Results">
      <table>
        <caption class="visually-hidden">Results of the runs</caption>
        <thead>
          <tr>
            <th scope="col">Run</th><th scope="col">Phase</th><th scope="col" class="num">Steps</th><th scope="col" class="num">Last reward</th>
            <th scope="col" class="num">Best, mean of 10</th><th scope="col" class="num">At step</th><th scope="col" class="num">Validation</th>
            <th scope="col" class="num">Duration</th><th scope="col" class="num">Tokens</th>
          </tr>
        </thead>
        <tbody>
          ${found.runs.map((run, at) => {
            const result = summaryOf(tables?.[at]);
            const end = run.completedAt ? Date.parse(run.completedAt) : Date.now();
            return html`<tr key=${run.uid}>
              <th scope="row"><${LineKey} at=${at} /> <a href=${href(["runs", run.namespace, run.name])}>${run.displayName || run.name}</a></th>
              <td><${Phase} phase=${run.phase} /></td>
              <td class="num">${steps(run)}</td>
              <td class="num">${fixed(result.last ?? run.reward)}</td>
              <td class="num">${fixed(result.best)}</td>
              <td class="num">${result.bestStep ?? "–"}</td>
              <td class="num">${fixed(result.val)}</td>
              <td class="num" title=${`created ${age(run.createdAt)} ago`}>${run.startedAt ? duration((end - Date.parse(run.startedAt)) / 1000) : "–"}</td>
              <td class="num">${number(result.tokens)}</td>
            </tr>`;
          })}
        </tbody>
      </table>
    <//>
  </section>`;
}

function Differences({ found }) {
  const { differences, totalDifferences, runs } = found;
  return html`<section class="card" aria-labelledby="differences">
    <h2 id="differences">Configuration: ${differences.length ? plural(totalDifferences, "difference") : "no difference"}</h2>
    ${differences.length > 0 &&
    html`<${ScrollRegion} label="Table: Differences" style="differences-region">
      <table class="differences">
        <caption class="visually-hidden">Fields that differ</caption>
        <thead>
          <tr><th scope="col">Field</th>${runs.map((run, at) => html`<th scope="col" key=${run.uid}><${LineKey} at=${at} /> ${run.displayName || run.name}</th>`)}</tr>
        </thead>
        <tbody>
          ${differences.map(
            ({ path, values }) =>
              html`<tr key=${path}><th scope="row" class="mono">${path}</th>${values.map((value, at) => html`<td key=${at} class="mono">${textOf(value)}</td>`)}</tr>`,
          )}
        </tbody>
      </table>
    <//>`}
    ${totalDifferences > differences.length && html`<p class="more muted">The first ${differences.length} of ${totalDifferences}.</p>`}
  </section>`;
}

function textOf(value) {
  if (value === null || value === undefined) return html`<span class="muted">not set</span>`;
  return typeof value === "string" ? value : JSON.stringify(value);
}
