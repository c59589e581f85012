/** Differences of two texts. */
import { html, useEffect, useState } from "../lib/html.js";

/** Longest time of a comparison in ms: it blocks the page. */
const LIMIT_MS = 400;

/** @param {{before: string, after: string, names: string[]}} props */
export function TextDiff({ before, after, names }) {
  const [isReady, setReady] = useState(Boolean(window.Diff));
  const [failure, setFailure] = useState("");
  useEffect(() => {
    if (!isReady) import("../vendor/diff.min.js").then(() => setReady(true), (error) => setFailure(String(error)));
  }, []);
  if (failure) return html`<p class="muted">The comparison could not be loaded: ${failure}</p>`;
  if (!isReady) return html`<p class="loading" role="status">Loading …</p>`;
  if (before === after) return html`<p class="muted">Both texts are equal.</p><pre class="code">${before}</pre>`;
  const parts = differences(before, after);
  if (!parts) return html`<div class="notice"><p>The texts are too long and too different for a comparison. Read them side by side.</p></div>`;
  return html`
    <p class="sub muted"><del class="diff-key">only in ${names[0]}</del> <ins class="diff-key">only in ${names[1]}</ins></p>
    <pre class="code diff">${parts.map(({ value, added, removed }, at) => (added ? html`<ins key=${at}>${value}</ins>` : removed ? html`<del key=${at}>${value}</del>` : value))}</pre>
  `;
}

function differences(before, after) {
  const { diffWordsWithSpace, diffLines } = window.Diff;
  return diffWordsWithSpace(before, after, { timeout: LIMIT_MS }) ?? diffLines(before, after, { timeout: LIMIT_MS });
}
