/** Charts of one run, in groups that are loaded when they come into view. */
import { CHART_GROUPS, metricNames } from "../components/chart_catalog.js";
import { Chart } from "../components/chart.js";
import { ChartControls, chartView } from "../components/chart_controls.js";
import { Empty, ProblemView } from "../components/problem.js";
import { Tiles } from "../components/tiles.js";
import { request, runPath } from "../lib/api.js";
import { bandOf, linesOf } from "../lib/chart_data.js";
import { age, plural } from "../lib/format.js";
import { html, useMemo } from "../lib/html.js";
import { useMetrics } from "../lib/metrics.js";
import { useResource } from "../lib/resource.js";
import { setQuery, useRoute } from "../lib/router.js";
import { stepReader } from "../lib/sample_data.js";
import { useSeen } from "../lib/visible.js";

const MAX_OWN = 12;

/** @param {{namespace: string, name: string, run: any, isLive: boolean, follow: import("./run.js").Follow}} props */
export function ChartsTab({ namespace, name, run, isLive, follow }) {
  const { query } = useRoute();
  const view = chartView(query);
  const own = query.getAll("m").slice(0, MAX_OWN);
  const names = useResource(`${namespace}/${name}/names`, (signal) => request(`${runPath(namespace, name)}/metrics/names`, { signal }), follow);
  const marks = useMemo(() => marksOf(run), [run?.resourceVersion]);
  const shared = { namespace, name, follow, view, marks };
  if (names.data && !names.data.steps) return html`<${NoMetrics} isLive=${isLive} isClient=${run?.summary.driver === "Client"} />`;
  return html`
    ${names.problem && html`<${ProblemView} problem=${names.problem} onRetry=${names.reload} />`}
    <${Tiles} ...${shared} run=${run} />
    <${ChartControls} view=${view} hasMarks=${marks.length > 0} names=${names.data?.names ?? []} own=${own} />
    ${own.length > 0 && html`<${Group} key=${own.join("|")} ...${shared} group=${ownGroup(own)} onRemove=${(metric) => setQuery({ m: own.filter((one) => one !== metric) })} />`}
    ${CHART_GROUPS.map((group) => html`<${Group} key=${group.id} ...${shared} group=${group} />`)}
  `;
}

/** @returns {import("../components/chart_catalog.js").ChartGroup} */
function ownGroup(metrics) {
  const charts = metrics.map((metric) => ({ id: metric, title: metric, about: "", series: [{ metric }] }));
  return { id: "own", title: "Chosen metrics", charts };
}

function Group({ group, namespace, name, follow, view, marks, onRemove }) {
  const [element, isSeen] = useSeen("400px");
  const metrics = useMetrics({ namespace, name, names: isSeen ? metricNames(group) : null, follow });
  const hasBand = group.charts.some((chart) => chart.hasBand);
  const errors = useErrors({ namespace, name, isOn: isSeen && hasBand, follow });
  const table = metrics.data;
  const charts = useMemo(() => (table ? group.charts.map((chart) => withLines(chart, table, errors)).filter(({ lines }) => lines.length) : []), [table, errors]);
  if (table && !charts.length && group.id !== "own") return null;
  return html`<section class="stack" ref=${element} aria-labelledby=${`group-${group.id}`}>
    <div class="row between">
      <h2 id=${`group-${group.id}`}>${group.title}</h2>
      ${table?.isBucketed && html`<span class="muted sub">Means of ${plural(table.steps.length, "interval")} of ${table.totalSteps.toLocaleString("en-US")} steps</span>`}
    </div>
    ${metrics.problem && html`<${ProblemView} problem=${metrics.problem} onRetry=${metrics.reload} />`}
    ${(metrics.problem && table) || table?.isStale ? html`<p class="age">S3 or the server does not answer. These charts are ${age(metrics.at)} old or older.</p>` : null}
    <div class="charts">
      ${!table && !metrics.problem && group.charts.slice(0, 4).map((chart) => html`<div key=${chart.id} class="card chart placeholder" />`)}
      ${charts.map(
        ({ chart, lines }) =>
          html`<div key=${chart.id} class=${`chart-place ${chart.isTall ? "tall" : ""}`}>
            <${Chart}
              title=${chart.title} unit=${chart.unit} about=${chart.about} steps=${table?.steps} times=${table?.times} lines=${lines} view=${view}
              isLog=${chart.isLog} isStacked=${chart.isStacked} isTall=${chart.isTall} marks=${view.hasMarks ? marks : undefined} syncKey="run"
            />
            ${onRemove && html`<button class="small quiet" onClick=${() => onRemove(chart.id)}>Remove ${chart.title}</button>`}
          </div>`,
      )}
    </div>
  </section>`;
}

function withLines(chart, table, errors) {
  const lines = linesOf(chart, table.columns);
  if (chart.hasBand && lines[0] && !lines[0].isPoints && errors) {
    const band = bandOf(table.steps, lines[0].values, errors);
    if (band) lines[0] = { ...lines[0], ...band };
  }
  return { chart, lines };
}

/** Standard errors of the mean reward by step, which the stored rollouts have. */
function useErrors({ namespace, name, isOn, follow }) {
  const read = useMemo(() => stepReader(namespace, name, { split: "train" }), [namespace, name]);
  const steps = useResource(isOn ? `${namespace}/${name}/errors` : null, read, follow);
  return useMemo(() => {
    const found = (steps.data?.items ?? []).filter(({ reward }) => typeof reward?.standardError === "number");
    return new Map(found.map(({ step, reward }) => [step, reward.standardError]));
  }, [steps.data]);
}

/** What happened, as marks on the charts. Pure. */
function marksOf(run) {
  const status = run?.status ?? {};
  const marksOfKind = (items, kind) =>
    (items ?? [])
      .filter(({ createdAt }) => createdAt)
      .map(({ step, createdAt }) => ({ kind, label: `${kind} ${step}`, step, time: Date.parse(createdAt) / 1000 }));
  const checkpoints = marksOfKind(status.checkpoints, "checkpoint");
  const steps = new Set(checkpoints.map(({ step }) => step));
  return [...checkpoints, ...marksOfKind(status.adapters, "adapter").filter(({ step }) => !steps.has(step))];
}

function NoMetrics({ isLive, isClient }) {
  if (isClient) return html`<div class="card"><${Empty} title="No metrics" level=${2}><p>The client's program has the metrics of this run.</p><//></div>`;
  return html`<div class="card"><${Empty} title=${isLive ? "No metrics yet" : "No metrics"} level=${2}>
    <p>${isLive ? "The first ones come with the first step. This page shows them by itself." : "The run ended before its first step, or its files are deleted."}</p>
  <//></div>`;
}
