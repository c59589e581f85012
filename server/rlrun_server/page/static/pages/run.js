/** One run: its state above, and tabs below. */
import { Diagnosis } from "../components/diagnosis.js";
import { Lazy } from "../components/lazy.js";
import { Empty, ProblemView } from "../components/problem.js";
import { RunHeader } from "../components/run_header.js";
import { isFinished } from "../components/phase.js";
import { announce } from "../lib/announce.js";
import { request, runPath } from "../lib/api.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { useKeys } from "../lib/keys.js";
import { useLinger } from "../lib/linger.js";
import { newer } from "../lib/newer.js";
import { useResource } from "../lib/resource.js";
import { href, navigate, route, useRoute } from "../lib/router.js";
import { useTitle } from "../lib/title.js";

const TABS = [
  { id: "charts", title: "Charts", load: () => import("./run_charts.js").then((module) => module.ChartsTab) },
  { id: "samples", title: "Samples", load: () => import("./samples.js").then((module) => module.SamplesTab) },
  { id: "events", title: "Events", load: () => import("./run_events.js").then((module) => module.EventsTab) },
  { id: "logs", title: "Logs", load: () => import("./run_logs.js").then((module) => module.LogsTab) },
  { id: "config", title: "Config", load: () => import("./run_config.js").then((module) => module.ConfigTab) },
  { id: "artifacts", title: "Artifacts", load: () => import("./artifacts.js").then((module) => module.RunArtifactsTab) },
];
/** Tabs of a run that is deleted: what S3 has. */
const KEPT_TABS = ["charts", "samples", "logs", "artifacts"];
/** Tabs of a run whose training loop is a client's program: it has no rollouts and no pods. */
const CLIENT_TABS = ["charts", "events", "config", "artifacts"];
/** Tabs above which all of the state is shown. */
const WHOLE = ["charts", "events"];
const UID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const POLL_MS = 2000;
/** Interval of metrics and samples, which are also read when the run has changed: evaluations end later. */
const DATA_MS = 10_000;
const RARELY_MS = 30_000;
/** Time for which a run is followed after its end: its last files are listed a little after its status says so. */
const LINGER_MS = 10_000;

// The tab is loaded while the state of the run is read.
TABS.find(({ id }) => id === (route.value.path[3] ?? "charts"))?.load().catch(() => {});

/**
 * Interval and version of tabs that read again, as options of `useResource`.
 * @typedef {{interval: number, version: string}} Follow
 */

export function RunPage() {
  const { path } = useRoute();
  const [, namespace, name, tabId = "charts"] = path;
  const [interval, setPace] = useState(RARELY_MS);
  const newest = useRef(/** @type {any} */ (null));
  const load = async (/** @type {AbortSignal} */ signal) => {
    newest.current = newer(newest.current, await request(runPath(namespace, name), { signal }));
    return newest.current;
  };
  const run = useResource(`${namespace}/${name}`, load, { interval });
  const summary = run.data?.summary;
  const isLive = useLinger(Boolean(summary) && !isFinished(summary.phase), LINGER_MS);
  useEffect(() => setPace(isLive ? POLL_MS : RARELY_MS), [isLive]);
  const follow = { interval: isLive ? DATA_MS : 0, version: run.data?.resourceVersion ?? "" };
  useTitle(summary ? `${summary.displayName || summary.name} · ${summary.phase}` : name);
  usePhaseMessages(summary);
  const isDeleted = run.problem?.status === 404 && UID.test(name);
  const shown = isDeleted ? KEPT_TABS : summary?.driver === "Client" ? CLIENT_TABS : null;
  const tabs = shown ? TABS.filter(({ id }) => shown.includes(id)) : TABS;
  const tab = tabs.find(({ id }) => id === tabId) ?? tabs[0];
  useKeys({
    ...Object.fromEntries(tabs.map(({ id }, at) => [String(at + 1), () => navigate(href(["runs", namespace, name, id]))])),
    Escape: () => navigate(href(["runs"], { ns: namespace })),
  });
  if (run.problem && !run.data && !isDeleted) {
    return html`<h1>${name}</h1>
      <${ProblemView} problem=${run.problem} onRetry=${run.reload} />
      ${run.problem.status === 404 &&
      html`<${Empty} title="Was the run deleted?" level=${2}>
        <p>Its metrics and rollouts are still there under its uid, if its artifacts were kept: open <code>runs/${namespace}/UID</code>.</p>
        <a class="button" href=${href(["runs"], { ns: namespace })}>Runs of ${namespace}</a>
      <//>`}`;
  }
  if (!run.data && !isDeleted) return html`<p class="loading" role="status">Loading the run …</p>`;
  return html`
    ${isDeleted
      ? html`<h1>Deleted run</h1><div class="notice"><strong>This run is deleted</strong><p>What it kept in S3 is still here: ${name}</p></div>`
      : html`<${RunHeader} run=${run.data} isLive=${isLive && !run.problem} problem=${run.problem} at=${run.at} isShort=${!WHOLE.includes(tab.id)} onChange=${run.reload} />
          ${WHOLE.includes(tab.id) && html`<${Diagnosis} run=${run.data} />`}`}
    <nav class="tabs" aria-label="Views of the run">
      ${tabs.map(
        ({ id, title }, at) =>
          html`<a key=${id} href=${href(["runs", namespace, name, id])} aria-current=${tab.id === id ? "page" : undefined} title=${`Key ${at + 1}`}>
            ${title}
          </a>`,
      )}
    </nav>
    <${Lazy} key=${tab.id} load=${tab.load} props=${{ namespace, name, run: run.data, isLive, follow }} />
  `;
}

/** Tells changes of phase; each step would be too much for a screen reader. */
function usePhaseMessages(summary) {
  const before = useRef("");
  useEffect(() => {
    if (!summary) return;
    if (before.current && before.current !== summary.phase) announce(`The run is now ${summary.phase.toLowerCase()}`, true);
    before.current = summary.phase;
  }, [summary?.phase]);
}
