/** Errors, loading and empty states. */
import { age, plural } from "../lib/format.js";
import { html } from "../lib/html.js";

/** @param {{problem: import("../lib/api.js").Problem, onRetry?: () => void, title?: string}} props */
export function ProblemView({ problem, onRetry, title }) {
  const errors = problem.errors.slice(0, 20);
  return html`<div class="problem" role="alert">
    <strong>${title ? `${title}: ${problem.title}` : problem.title}</strong>
    ${problem.detail && html`<p>${problem.detail}</p>`}
    ${errors.length > 0 &&
    html`<ul>
      ${errors.map((error) => html`<li><code>${error.pointer}</code> ${error.detail}</li>`)}
      ${problem.errors.length > errors.length && html`<li>and ${problem.errors.length - errors.length} more</li>`}
    </ul>`}
    ${(onRetry || problem.requestId) &&
    html`<div class="row actions">
      ${onRetry && html`<button class="small" onClick=${onRetry}>Retry</button>`}
      ${problem.requestId && html`<span class="muted">Request <code>${problem.requestId}</code></span>`}
    </div>`}
  </div>`;
}

/**
 * Show a resource: its problem, that it is loading, or what `children` makes of its data. Old data stays, with its age.
 * @template T
 * @param {{resource: import("../lib/resource.js").Resource<T>, what: string, children: (data: T) => unknown}} props
 */
export function Loaded({ resource, what, children }) {
  const { data, problem, reload, at } = resource;
  return html`
    ${problem && html`<${ProblemView} problem=${problem} title=${data === null ? `No ${what}` : undefined} onRetry=${reload} />`}
    ${problem && data !== null && html`<p class="age">These ${what} are ${age(at)} old.</p>`}
    ${data === null && !problem && html`<p class="loading" role="status">Loading ${what} …</p>`}
    ${data !== null && children(data)}
  `;
}

/** @param {{title: string, level?: 1 | 2 | 3, children?: unknown}} props level of the heading: 2 below that of the page */
export function Empty({ title, level = 3, children }) {
  return html`<div class="empty"><${`h${level}`}>${title}<//>${children}</div>`;
}

/** @param {{shown: number, total: number, noun: string, onMore?: () => void, isBusy?: boolean}} props */
export function More({ shown, total, noun, onMore, isBusy }) {
  if (shown >= total && !onMore) return null;
  return html`<div class="row more">
    <span class="muted">${shown.toLocaleString("en-US")} of ${plural(total, noun)}</span>
    ${onMore && html`<button class="small" disabled=${isBusy} onClick=${onMore}>${isBusy ? "Loading …" : "Show more"}</button>`}
  </div>`;
}
