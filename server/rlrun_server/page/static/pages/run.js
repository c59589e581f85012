/** One run: its state above, and tabs below. */
import { Diagnosis } from "../components/diagnosis.js";
import { Lazy } from "../components/lazy.js";
import { Empty, ProblemView } from "../components/problem.js";
import { RunHeader } from "../components/run_header.js";
import { isFinished } from "../components/phase.js";
import { announce } from "../lib/announce.js";
import { request, runPath } from "../lib/api.js";
import { html, useEffect, useMemo, useRef } from "../lib/html.js";
import { useKeys } from "../lib/keys.js";
import { useLinger } from "../lib/linger.js";
import { useLive } from "../lib/live.js";
import { useResource } from "../lib/resource.js";
import { href, navigate, route, useRoute } from "../lib/router.js";
import { throttled } from "../lib/throttle.js";
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
/** Tabs above which all of the state is shown. */
const WHOLE = ["charts", "events"];
const UID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;
const RELOAD_MS = 1500;
const RARELY_MS = 30_000;
/** Time for which a run is followed after its end: its last files are listed a little after its status says so. */
const LINGER_MS = 10_000;
const TOPICS = ["status", "metrics", "steps"];

// The tab is loaded while the state of the run is read.
TABS.find(({ id }) => id === (route.value.path[3] ?? "charts"))?.load().catch(() => {});

export function RunPage() {
  const { path } = useRoute();
  const [, namespace, name, tabId = "charts"] = path;
  const run = useResource(`${namespace}/${name}`, (signal) => request(runPath(namespace, name), { signal }), { interval: RARELY_MS });
  const summary = run.data?.summary;
  const changes = useChanges();
  const isLive = useLinger(Boolean(summary) && !isFinished(summary.phase), LINGER_MS, () => TOPICS.forEach(changes.tell));
  const reload = useMemo(() => throttled(() => run.reload(), RELOAD_MS), [run.reload]);
  const live = useLive(
    { namespace, run: name, topics: TOPICS, isOn: isLive },
    {
      status: () => {
        reload();
        changes.tell("status");
      },
      metrics: () => changes.tell("metrics"),
      steps: () => changes.tell("steps"),
      bye: reload,
      poll: () => {
        reload();
        changes.tell("metrics");
        changes.tell("steps");
      },
    },
  );
  useTitle(summary ? `${summary.displayName || summary.name} · ${summary.phase}` : name);
  usePhaseMessages(summary);
  const isDeleted = run.problem?.status === 404 && UID.test(name);
  const tabs = isDeleted ? TABS.filter(({ id }) => KEPT_TABS.includes(id)) : TABS;
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
      : html`<${RunHeader} run=${run.data} live=${live} problem=${run.problem} at=${run.at} isShort=${!WHOLE.includes(tab.id)} onChange=${run.reload} />
          ${WHOLE.includes(tab.id) && html`<${Diagnosis} run=${run.data} />`}`}
    <nav class="tabs" aria-label="Views of the run">
      ${tabs.map(
        ({ id, title }, at) =>
          html`<a key=${id} href=${href(["runs", namespace, name, id])} aria-current=${tab.id === id ? "page" : undefined} title=${`Key ${at + 1}`}>
            ${title}
          </a>`,
      )}
    </nav>
    <${Lazy} key=${tab.id} load=${tab.load} props=${{ namespace, name, run: run.data, isLive, changes }} />
  `;
}

/**
 * Changes of a topic, which tabs follow: they read again when they are told.
 * @typedef {{tell: (topic: string) => void, follow: (topic: string, act: () => void) => () => void}} Changes
 * @returns {Changes}
 */
function useChanges() {
  return useMemo(() => {
    /** @type {Map<string, Set<() => void>>} */
    const followers = new Map();
    const of = (topic) => {
      const known = followers.get(topic) ?? new Set();
      followers.set(topic, known);
      return known;
    };
    return {
      tell: (topic) => of(topic).forEach((act) => act()),
      follow: (topic, act) => {
        of(topic).add(act);
        return () => of(topic).delete(act);
      },
    };
  }, []);
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
