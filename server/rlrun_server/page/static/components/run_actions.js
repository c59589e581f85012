/** Buttons that change a run. */
import { announce } from "../lib/announce.js";
import { request, runPath } from "../lib/api.js";
import { html, useState } from "../lib/html.js";
import { useAction } from "../lib/resource.js";
import { href, navigate } from "../lib/router.js";
import { ConfirmDialog } from "./dialog.js";
import { isFinished } from "./phase.js";

const TEXTS = {
  stop: {
    title: "Stop the run?", verb: "Stop", done: "The run is being stopped",
    text: "It ends for good. Its checkpoints and adapters are kept, and a new run can continue from one of them.",
  },
  suspend: {
    title: "Suspend the run?", verb: "Suspend", done: "The run is being suspended",
    text: "Its pods are deleted. Steps since the newest checkpoint are repeated when it is resumed.",
  },
  resume: { title: "Resume the run?", verb: "Resume", done: "The run is being resumed", text: "It continues from its newest checkpoint." },
  delete: { title: "Delete the run?", verb: "Delete", done: "The run is being deleted", text: "The run and its pods are deleted." },
};

/** @param {{run: any, onChange: () => void}} props */
export function RunActions({ run, onChange }) {
  const [open, setOpen] = useState(/** @type {keyof typeof TEXTS | null} */ (null));
  const { summary, spec } = run;
  const isOver = isFinished(summary.phase);
  /** @type {(keyof typeof TEXTS)[]} */
  const actions = isOver ? ["delete"] : [spec.suspend ? "resume" : "suspend", "stop", "delete"];
  return html`<div class="row">
    ${isOver && html`<a class="button small" href=${href(["runs", summary.namespace, summary.name, "artifacts"])}>Continue or deploy</a>`}
    <a class="button small" href=${href(["compare"], { run: `${summary.namespace}/${summary.name}` })}>Compare</a>
    ${actions.map(
      (name) =>
        html`<button key=${name} class=${`small ${name === "delete" ? "danger" : ""}`} onClick=${() => setOpen(name)}>${TEXTS[name].verb}</button>`,
    )}
    ${open && html`<${ChangeDialog} key=${open} name=${open} run=${run} onClose=${() => setOpen(null)} onChange=${onChange} />`}
  </div>`;
}

function ChangeDialog({ name, run, onClose, onChange }) {
  const { namespace, name: runName } = run.summary;
  const [artifacts, setArtifacts] = useState(run.spec.artifactPolicy === "Delete" ? "delete" : "retain");
  const [typed, setTyped] = useState("");
  const text = TEXTS[name];
  const isDelete = name === "delete";
  const isTyped = !isDelete || artifacts === "retain" || typed === runName;
  const action = useAction(() =>
    isDelete
      ? request(runPath(namespace, runName), { method: "DELETE", query: { artifacts } })
      : request(`${runPath(namespace, runName)}:${name}`, { method: "POST" }),
  );
  const done = () => {
    onClose();
    announce(text.done, true);
    if (isDelete) navigate(href(["runs"], { ns: namespace }));
    else onChange();
  };
  return html`<${ConfirmDialog}
    title=${text.title} verb=${text.verb} isDanger=${isDelete} isReady=${isTyped} action=${action} onDone=${done} onClose=${onClose}
  >
    <p><b class="mono">${namespace}/${runName}</b></p>
    <p>${text.text}</p>
    ${isDelete &&
    html`<label class="field">
        Checkpoints, adapters and rollouts in S3
        <select value=${artifacts} onChange=${(event) => setArtifacts(event.currentTarget.value)}>
          <option value="retain">keep them</option>
          <option value="delete">delete them for good</option>
        </select>
      </label>
      ${artifacts === "delete" &&
      html`<label class="field">
        Type the name of the run to confirm
        <input value=${typed} autocomplete="off" onInput=${(event) => setTyped(event.currentTarget.value)} />
      </label>`}`}
  <//>`;
}
