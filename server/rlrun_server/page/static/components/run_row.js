/** Row of a run in a list. */
import { request, runPath } from "../lib/api.js";
import { age, dateTime, duration, fixed, steps, words } from "../lib/format.js";
import { html } from "../lib/html.js";
import { taskQueue } from "../lib/queue.js";
import { useResource } from "../lib/resource.js";
import { href, navigate } from "../lib/router.js";
import { useSeen } from "../lib/visible.js";
import { Phase } from "./phase.js";
import { Sparkline } from "./sparkline.js";

const POINTS = 60;
/** Phases whose reason tells more than the phase. */
const WITH_REASON = ["Queued", "Pending", "Failed"];
/** Trends are read two at a time: the server reads the metrics of two runs at once. */
const queue = taskQueue(2);
const TREND_INTERVAL_MS = 30_000;

/** @param {{run: any, hasNamespace: boolean, isSelected: boolean, onSelect: () => void}} props */
export function RunRow({ run, hasNamespace, isSelected, onSelect }) {
  const address = href(["runs", run.namespace, run.name]);
  const name = run.displayName || run.name;
  const open = (event) => {
    if (event.target.closest("a, input, button") || window.getSelection()?.toString()) return;
    navigate(address);
  };
  return html`<tr class=${isSelected ? "selected" : ""} onClick=${open}>
    <td class="check"><label><input type="checkbox" checked=${isSelected} onChange=${onSelect} aria-label=${`Select ${name}`} /></label></td>
    <td class="name">
      <a href=${address}>${name}</a>
      <div class="muted sub">${hasNamespace && `${run.namespace} · `}${run.displayName ? `${run.name} · ` : ""}${run.driver === "Client" ? "client's program" : run.environments.join(", ")}</div>
    </td>
    <td><${Phase} phase=${run.phase} />${WITH_REASON.includes(run.phase) && run.reason && run.reason !== run.phase && html`<div class="muted sub">${words(run.reason)}</div>`}</td>
    <td class="step">
      <div class="row between steps"><span>${steps(run)}</span>
        ${run.etaSeconds > 0 && html`<span class="muted sub">${duration(run.etaSeconds)} left</span>`}</div>
      ${run.maxSteps > 0 && html`<progress max=${run.maxSteps} value=${run.step} aria-label=${`Steps of ${name}`} />`}
    </td>
    <td class="num reward">${fixed(run.reward)}</td>
    <td class="wide trend">${run.step > 1 && html`<${Trend} run=${run} />`}</td>
    <td class="wide muted model">${run.model}</td>
    <td class="num muted age" title=${dateTime(run.createdAt)}>${age(run.createdAt)}</td>
  </tr>`;
}

function Trend({ run }) {
  const [element, isSeen] = useSeen();
  const isLive = run.phase === "Running";
  const { data } = useResource(
    isSeen ? `${run.uid}:${isLive ? "" : run.step}` : null,
    (signal) =>
      queue(
        () => request(`${runPath(run.namespace, run.name)}/metrics`, { query: { name: "reward/mean", points: POINTS }, signal, tries: 1 }),
        signal,
      ),
    { interval: isLive ? TREND_INTERVAL_MS : 0 },
  );
  const values = data?.series.find((series) => series.name === "reward/mean")?.values ?? [];
  return html`<span ref=${element} class="trend-place"><${Sparkline} values=${values} /></span>`;
}
