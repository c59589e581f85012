/** State of a run in one look, and what can be done with it. */
import { request, runPath } from "../lib/api.js";
import { age, dateTime, duration, fixed } from "../lib/format.js";
import { html } from "../lib/html.js";
import { useResource } from "../lib/resource.js";
import { href } from "../lib/router.js";
import { Phase, isFinished } from "./phase.js";
import { ProblemView } from "./problem.js";
import { RunActions } from "./run_actions.js";

/** @param {{run: any, isLive: boolean, problem: any, at: number, isShort: boolean, onChange: () => void}} props isShort: without facts */
export function RunHeader({ run, isLive, problem, at, isShort, onChange }) {
  const { summary, status, spec } = run;
  const newest = useNewest(run);
  const name = summary.displayName || summary.name;
  const running = summary.startedAt ? (Date.parse(summary.completedAt || "") || Date.now()) - Date.parse(summary.startedAt) : null;
  const groups = status.groups;
  return html`<section class="run-header card pad" aria-label="State of the run">
    <div class="row between">
      <div class="row grow">
        <h1>${name}</h1>
        <${Phase} phase=${summary.phase} />
        ${isLive && html`<span class="live">live</span>`}
      </div>
      <${RunActions} run=${run} onChange=${onChange} />
    </div>
    ${problem && html`<${ProblemView} problem=${problem} /><p class="age">This is ${age(at)} old.</p>`}
    <div class="run-progress">
      ${summary.maxSteps > 0 && html`<progress max=${summary.maxSteps} value=${summary.step} aria-label="Steps" />`}
      <span>step <b>${summary.step}</b>${summary.maxSteps > 0 && `/${summary.maxSteps}`}
        ${!isFinished(summary.phase) && summary.etaSeconds > 0 && html`<span class="muted"> · ${duration(summary.etaSeconds)} left</span>`}</span>
    </div>
    ${!isShort && html`<dl class="facts">
      <div><dt>Reward</dt><dd class="main"><b>${fixed(summary.reward)}</b>${newest.error !== null && html` <span class="muted">± ${fixed(1.96 * newest.error)}</span>`}</dd></div>
      ${newest.val !== null && html`<div><dt>Validation</dt><dd class="main">${fixed(newest.val)}</dd></div>`}
      ${newest.evals.map(({ label, value }) => html`<div key=${label}><dt>${label}</dt><dd class="main">${fixed(value)}</dd></div>`)}
      <div><dt>Model</dt><dd>${summary.model}</dd></div>
      ${summary.driver === "Client"
        ? html`<div><dt>Driver</dt><dd>client's program</dd></div>`
        : html`<div><dt>${summary.environments.length === 1 ? "Environment" : "Environments"}</dt><dd>${summary.environments.join(", ")}</dd></div>`}
      <div><dt>Namespace</dt><dd><a href=${href(["runs"], { ns: summary.namespace })}>${summary.namespace}</a>${summary.displayName ? ` / ${summary.name}` : ""}</dd></div>
      <div><dt>Created</dt><dd title=${dateTime(summary.createdAt)}>${age(summary.createdAt)} ago</dd></div>
      ${running !== null && html`<div><dt>Duration</dt><dd>${duration(running / 1000)}</dd></div>`}
      ${summary.restarts > 0 && html`<div><dt>Restarts</dt><dd>${summary.restarts}</dd></div>`}
      ${groups && html`<div><dt>Groups</dt><dd>${groupsText(groups)}</dd></div>`}
      ${spec.checkpointId && html`<div><dt>Started from</dt><dd class="mono">${spec.checkpointId}</dd></div>`}
    </dl>`}
  </section>`;
}

function groupsText({ trained = 0, filtered = 0, errored = 0, stale = 0 }) {
  /** @type {[number, string][]} */
  const counts = [[filtered, "filtered"], [errored, "failed"], [stale, "stale"]];
  return [[trained, "trained"], ...counts.filter(([count]) => count > 0)].map(([count, word]) => `${count.toLocaleString("en-US")} ${word}`).join(", ");
}

/** Standard error, validation and evaluations of the newest steps that have them. */
function useNewest(run) {
  const { namespace, name, step, phase } = run.summary;
  const path = runPath(namespace, name);
  const key = `${path}:${phase}:${Math.floor(step / 5)}`;
  const metrics = useResource(
    step > 0 ? key : null,
    (signal) => request(`${path}/metrics`, { query: { name: ["val_reward/mean", "eval/*"], points: 1000 }, signal }),
    { keepsOld: true },
  );
  const steps = useResource(
    step > 0 ? `${path}:${phase}:${step}:steps` : null,
    (signal) => request(`${path}/steps`, { query: { split: "train", order: "desc", limit: 1 }, signal, tries: 1 }),
    { keepsOld: true },
  );
  const evals = [];
  let val = null;
  for (const { name: metric, values } of metrics.data?.series ?? []) {
    const last = values.findLast((value) => value !== null) ?? null;
    const found = /^eval\/(.+)\/(avg@\d+)$/s.exec(metric);
    if (metric === "val_reward/mean") val = last;
    else if (found && last !== null && evals.length < 3) evals.push({ label: `${found[1]} ${found[2]}`, value: last });
  }
  return { error: steps.data?.items[0]?.reward?.standardError ?? null, val, evals };
}
