/** Dialog that starts a run from a checkpoint. */
import { announce } from "../lib/announce.js";
import { pathOf, request, runPath } from "../lib/api.js";
import { html, useMemo, useState } from "../lib/html.js";
import { useAction, useResource } from "../lib/resource.js";
import { href, navigate } from "../lib/router.js";
import { ConfirmDialog } from "./dialog.js";

/** Fields of the old run that the new one does not take over. */
const LEFT_OUT = ["checkpointId", "stop", "suspend", "name"];

/** @param {{item: any, onClose: () => void}} props */
export function ContinueDialog({ item, onClose }) {
  const { namespace, run, name: checkpoint } = item;
  const old = useResource(`${namespace}/${run}/spec`, (signal) => request(runPath(namespace, run), { signal }));
  // Another run may have taken the name since.
  const isGone = Boolean(old.problem || (old.data && old.data.uid !== item.runUid));
  const isClient = old.data?.spec.driver === "Client";
  const spec = isGone || isClient ? undefined : old.data?.spec;
  const [name, setName] = useState(`${run}-more`.slice(0, 40));
  const [steps, setSteps] = useState("");
  const [rate, setRate] = useState("");
  // A repetition after a lost answer makes no second run.
  const key = useMemo(() => Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(16)).join(""), []);
  const action = useAction(() =>
    request(`${pathOf("namespaces", namespace)}/runs`, {
      method: "POST",
      headers: { "Idempotency-Key": `${key}-${name}-${steps}-${rate}`.slice(0, 128) },
      body: continued(spec, { checkpoint, name, steps: Number(steps) || spec.maxSteps, rate: Number(rate) }),
    }),
  );
  const done = (found) => {
    onClose();
    announce("The run is created", true);
    navigate(href(["runs", namespace, found.name]));
  };
  return html`<${ConfirmDialog} title="Continue from this checkpoint" verb="Start the run" isReady=${Boolean(spec && name.trim())} action=${action} onDone=${done} onClose=${onClose}>
    <p class="mono">${checkpoint}</p>
    ${isGone
      ? html`<div class="notice warning">
          <strong>The run of this checkpoint is gone</strong>
          <p>Its configuration went with it. Write one, set checkpoint_id, and start it:</p>
          <pre class="code">${`checkpoint_id = "${checkpoint}"`}</pre>
        </div>`
      : isClient
        ? html`<div class="notice">
            <strong>A client's program has the training loop of this run</strong>
            <p>Load the checkpoint in the program by its path, which begins with tinker://</p>
          </div>`
        : html`
          <p class="muted">A new run with the configuration of ${run}. Weights, optimizer and schedule go on; steps count from 0.</p>
          <label class="field">Name <input value=${name} required maxlength="40" onInput=${(event) => setName(event.currentTarget.value)} /></label>
          <div class="row">
            <label class="field">Steps <input type="number" min="1" placeholder=${spec?.maxSteps ?? ""} value=${steps} onInput=${(event) => setSteps(event.currentTarget.value)} /></label>
            <label class="field">Learning rate
              <input type="number" min="0" step="any" placeholder=${spec?.learningRate ?? "as before"} value=${rate} onInput=${(event) => setRate(event.currentTarget.value)} />
            </label>
          </div>
        `}
  <//>`;
}

/** Return the spec of the run that goes on. Pure. */
export function continued(spec, { checkpoint, name, steps, rate }) {
  const kept = Object.fromEntries(Object.entries(spec).filter(([field]) => !LEFT_OUT.includes(field)));
  return { ...kept, name: name.trim(), checkpointId: checkpoint, maxSteps: steps, ...(rate > 0 ? { learningRate: rate } : {}) };
}
