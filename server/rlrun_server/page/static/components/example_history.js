/** The same example through the steps. */
import { request, runPath } from "../lib/api.js";
import { fixed } from "../lib/format.js";
import { html } from "../lib/html.js";
import { useResource } from "../lib/resource.js";
import { setQuery } from "../lib/router.js";
import { Sparkline } from "./sparkline.js";

const SHOWN = 40;

/** @param {{namespace: string, name: string, step: number, split: string, info: any}} props */
export function ExampleHistory({ namespace, name, step, split, info }) {
  const path = `${runPath(namespace, name)}/examples/${encodeURIComponent(info.environment)}/${info.example}`;
  const { data } = useResource(`${path}:${split}`, (signal) => request(path, { query: { split }, signal, tries: 1 }));
  const points = data?.points ?? [];
  if (points.length < 2) return null;
  const shown = points.length > SHOWN ? [...points.slice(0, 5), ...points.slice(5 - SHOWN)] : points;
  return html`<div class="history">
    <div class="row">
      <h3>This example through the steps</h3>
      <${Sparkline} values=${points.map(({ mean }) => mean)} width=${160} name="Mean reward of the example" />
    </div>
    <ul class="plain row">
      ${shown.map(
        (point) =>
          html`<li key=${point.step}>
            <button
              class="small" aria-current=${point.step === step ? "true" : undefined}
              onClick=${() => setQuery({ step: point.step, example: info.example, env: info.environment, group: "", rollout: "", other: "" })}
            ><span class="muted">step ${point.step}</span> ${fixed(point.mean, 2)}</button>
          </li>`,
      )}
    </ul>
    ${shown.length < points.length && html`<p class="muted sub">The first five and the newest of ${points.length} steps.</p>`}
  </div>`;
}
