/** Card with one chart: title, lines, legend with the values under the cursor, and a table instead of it. */
import { lastOf, sentenceOf } from "../lib/chart_data.js";
import { clock, duration, number } from "../lib/format.js";
import { html, useMemo, useState } from "../lib/html.js";
import { useSeen } from "../lib/visible.js";
import { Plot, colorOf, dashOf } from "./plot.js";

const HEIGHT = 190;
const TALL = 270;
const MAX_ROWS = 500;
const NO_MARKS = [];

/**
 * @typedef {object} ChartView how all charts of a page are shown
 * @property {"step" | "time"} x
 * @property {number} smoothing
 * @property {boolean} isLog
 * @property {boolean} isTable
 */

/**
 * @param {{
 *   title: string, unit?: string, about?: string, steps: number[], times: number[], lines: import("../lib/chart_data.js").Line[],
 *   view: ChartView, isLog?: boolean, isStacked?: boolean, isTall?: boolean, marks?: any[], syncKey: string, isElapsed?: boolean,
 * }} props
 */
export function Chart({ title, unit, about, steps, times, lines, view, isLog, isStacked, isTall, marks = NO_MARKS, syncKey, isElapsed }) {
  const [element, isSeen] = useSeen();
  const [at, setAt] = useState(/** @type {number | null} */ (null));
  const [isOwnTable, setOwnTable] = useState(false);
  const isTable = view.isTable || isOwnTable;
  const isTime = view.x === "time" && !isElapsed;
  const isSeconds = view.x === "time" && isElapsed;
  const sentence = useMemo(() => sentenceOf(title, steps, lines), [title, steps, lines]);
  const height = isTall ? TALL : HEIGHT;
  const placed = useMemo(() => marks.map((mark) => ({ ...mark, x: isTime ? mark.time : mark.step })), [marks, isTime]);
  return html`<section class=${`card chart ${isTall ? "tall" : ""}`} ref=${element} aria-label=${title}>
    <header>
      <h3>${title}${unit && html` <span class="unit">${unit}</span>`}</h3>
      <button
        class="quiet small" aria-pressed=${String(isTable)} onClick=${() => setOwnTable(!isOwnTable)}
        aria-label=${`${title} as a table`} title="Table"
      >▤</button>
    </header>
    ${about && html`<p class="about">${about}</p>`}
    ${isTable
      ? html`<${ValueTable} title=${title} steps=${steps} times=${isElapsed ? null : times} firstTitle=${isSeconds ? "Seconds" : "Step"} lines=${lines} />`
      : html`<div class=${`plot ${isTall ? "tall" : ""}`} role="img" aria-label=${sentence}>
            ${isSeen &&
            html`<${Plot}
              xs=${isTime ? times : steps} lines=${lines} isTime=${isTime} isLog=${Boolean(isLog) !== view.isLog} isStacked=${isStacked}
              smoothing=${view.smoothing} height=${height} syncKey=${syncKey} onCursor=${setAt}
              marks=${placed}
            />`}
          </div>
          <ul class="legend" aria-hidden="true">
            ${at !== null && html`<li><b>${isTime ? clock(times[at] * 1000) : isSeconds ? duration(steps[at]) : `step ${steps[at]}`}</b></li>`}
            ${lines.map(
              (line, index) =>
                html`<li key=${line.label} title=${line.label}>
                  <${LineKey} at=${index} isPoints=${line.isPoints} isFilled=${isStacked} />
                  <span class="label">${line.label}</span>
                  <b>${number(at === null ? lastOf(line.values) : line.values[at])}</b>
                </li>`,
            )}
          </ul>`}
  </section>`;
}

/** Line as in the chart. */
export function LineKey({ at, isPoints, isFilled }) {
  const color = `var(${colorOf(at)})`;
  return html`<svg width="20" height="8" aria-hidden="true">
    ${isFilled
      ? html`<rect width="20" height="8" rx="2" fill=${color} />`
      : html`<line x1="0" x2="20" y1="4" y2="4" stroke=${color} stroke-width="2" stroke-dasharray=${isPoints ? "3 4" : dashOf(at).join(" ")} />`}
    ${isPoints && html`<circle cx="10" cy="4" r="3.2" fill=${color} />`}
  </svg>`;
}

function ValueTable({ title, steps, times, firstTitle, lines }) {
  const rows = steps.map((step, at) => ({ step, at })).slice(-MAX_ROWS).reverse();
  return html`<div class="table" tabindex="0" role="region" aria-label=${`${title}: values`}>
    <table>
      <caption class="visually-hidden">${title}, newest step first</caption>
      <thead class="sticky">
        <tr>
          <th scope="col">${firstTitle}</th>${times && html`<th scope="col">Time</th>`}
          ${lines.map((line) => html`<th scope="col" class="num" key=${line.label}>${line.label}</th>`)}
        </tr>
      </thead>
      <tbody>
        ${rows.map(
          ({ step, at }) =>
            html`<tr key=${step}>
              <th scope="row">${step}</th>${times && html`<td class="muted">${clock(times[at] * 1000)}</td>`}
              ${lines.map((line) => html`<td class="num">${line.values[at] === null ? "" : number(line.values[at])}</td>`)}
            </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}
