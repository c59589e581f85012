/** Phases of runs and artifacts. */
import { words } from "../lib/format.js";
import { html } from "../lib/html.js";

const KNOWN = ["running", "completed", "failed", "pending", "queued", "suspended", "stopped", "ready", "deployed", "deploying"];
export const PHASES = ["Running", "Queued", "Pending", "Suspended", "Completed", "Failed", "Stopped"];
const FINISHED = ["Completed", "Failed", "Stopped"];

/** @param {{phase: string}} props */
export function Phase({ phase }) {
  const name = phase.toLowerCase();
  const style = name === "deployfailed" ? "failed" : KNOWN.includes(name) ? name : "";
  return html`<span class=${`phase ${style}`}>${words(phase)}</span>`;
}

/** @param {string} phase */
export function isFinished(phase) {
  return FINISHED.includes(phase);
}
