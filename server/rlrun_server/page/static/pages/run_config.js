/** Configuration of a run: as TOML, as written, and with all defaults. */
import { Loaded } from "../components/problem.js";
import { request, runPath } from "../lib/api.js";
import { copy } from "../lib/copy.js";
import { html } from "../lib/html.js";
import { useResource } from "../lib/resource.js";
import { setQuery, useRoute } from "../lib/router.js";

const FORMS = { toml: "TOML", written: "As written", resolved: "With all defaults", environments: "Environment packages" };

/** @param {{namespace: string, name: string}} props */
export function ConfigTab({ namespace, name }) {
  const path = runPath(namespace, name);
  const config = useResource(`${path}/config`, (signal) => request(`${path}/config`, { signal }));
  const { query } = useRoute();
  const form = String(query.get("form")) in FORMS ? query.get("form") : "toml";
  return html`<${Loaded} resource=${config} what="configuration">
    ${(found) => {
      const text = textOf(found, form);
      return html`<section class="card pad stack" aria-label="Configuration">
        <div class="row between">
          <div class="segments" role="group" aria-label="Form">
            ${Object.entries(FORMS).map(
              ([id, title]) =>
                html`<button key=${id} class="small" aria-pressed=${String(form === id)} onClick=${() => setQuery({ form: id === "toml" ? "" : id })}>${title}</button>`,
            )}
          </div>
          <button class="small" disabled=${!text} onClick=${() => copy(text)}>Copy</button>
        </div>
        ${form === "toml" && html`<p class="muted">Save it as <code>rl.toml</code> and start the same again with <code>rlrun run rl.toml</code>.</p>`}
        ${form === "toml" && found.tomlProblem && html`<div class="notice warning"><strong>There is no TOML of this run</strong><p>${found.tomlProblem}</p></div>`}
        ${text ? html`<pre class="code" tabindex="0">${text}</pre>` : html`<p class="muted">Not known${form === "environments" ? " until the environments are ready" : ""}.</p>`}
      </section>`;
    }}
  <//>`;
}

function textOf(found, form) {
  if (form === "toml") return found.toml ?? "";
  if (form === "written") return JSON.stringify(found.spec, null, 2);
  if (form === "resolved") return found.resolved ? JSON.stringify(found.resolved, null, 2) : "";
  return found.environments?.length ? JSON.stringify(found.environments, null, 2) : "";
}
