/** What needs attention, with what to do about it. Texts are those of the run's conditions. */
import { age, duration, words } from "../lib/format.js";
import { html } from "../lib/html.js";
import { isFinished } from "./phase.js";

/** Conditions that say by their status that something needs attention. */
const WARNINGS = { TrainingHealthy: "False", RewardFunctionsHealthy: "False", Warnings: "True", ArtifactsCleanedUp: "False", ArtifactsRecorded: "False", ArtifactsListed: "False" };
const HARMLESS = ["RolloutBound", "TrainerBound", "NothingUnusual", "NoErrors", "NoWarnings"];

/** @param {{run: any}} props */
export function Diagnosis({ run }) {
  const notices = noticesOf(run);
  if (!notices.length) return null;
  return html`<div class="stack" role="region" aria-label="Diagnosis">
    ${notices.map(
      ({ key, kind, title, code, text }) =>
        html`<div key=${key} class=${kind === "bad" ? "problem" : `notice ${kind}`}><strong>${title}${code && html` <code class="reason">${code}</code>`}</strong>${text && html`<p>${text}</p>`}</div>`,
    )}
  </div>`;
}

/** Return what to show above the tabs. Pure. */
export function noticesOf({ summary, status }) {
  const notices = [];
  const conditions = status.conditions ?? [];
  if (summary.phase === "Failed") {
    notices.push({ key: "failed", kind: "bad", title: `The run failed: ${words(summary.reason || "Failed")}`, code: summary.reason, text: summary.message });
  } else if (!isFinished(summary.phase) && summary.phase !== "Running") {
    notices.push({ key: "waits", kind: "warning", title: waitingTitle(summary, status), code: summary.reason, text: summary.message });
  } else if (summary.phase === "Running" && summary.reason && summary.reason !== "Running") {
    notices.push({ key: "reason", kind: "warning", title: words(summary.reason), code: summary.reason, text: summary.message });
  }
  for (const { type, status: state, reason = "", message = "" } of conditions) {
    if (WARNINGS[type] !== state || HARMLESS.includes(reason) || isFinished(summary.phase) && type === "TrainingHealthy" && summary.phase === "Completed") continue;
    if (reason === summary.reason && notices.length) continue;
    notices.push({ key: type, kind: "warning", title: words(reason), code: reason, text: message });
  }
  return notices;
}

function waitingTitle(summary, status) {
  const queue = status.queue;
  const since = queue?.since && !queue.admittedTime ? ` for ${age(queue.since)}` : "";
  if (summary.phase === "Queued") {
    const ahead = queue?.runsAhead;
    const place = ahead === undefined || ahead === null ? "" : ahead === 0 ? ", and is the next" : `, ${ahead} ahead`;
    return `The run waits in the queue${since}${place}`;
  }
  if (summary.phase === "Suspended") return "The run is suspended";
  const next = status.nextRestartTime ? Date.parse(status.nextRestartTime) - Date.now() : 0;
  const reason = summary.reason && summary.reason !== "Starting" ? `: ${words(summary.reason)}` : "";
  return `The run is starting${reason}${next > 0 ? `, again in ${duration(next / 1000)}` : ""}`;
}
