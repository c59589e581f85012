/** Dialogs that deploy, download and delete artifacts. */
import { announce } from "../lib/announce.js";
import { pathOf, request } from "../lib/api.js";
import { size } from "../lib/format.js";
import { html } from "../lib/html.js";
import { useAction } from "../lib/resource.js";
import { copy } from "../lib/copy.js";
import { ConfirmDialog, Dialog } from "./dialog.js";

/** @param {{item: any, isOn: boolean, onClose: () => void, onChange: () => void}} props */
export function DeployDialog({ item, isOn, onClose, onChange }) {
  const path = `${pathOf("namespaces", item.namespace)}/adapters/${encodeURIComponent(item.name)}:${isOn ? "deploy" : "undeploy"}`;
  const action = useAction(() => request(path, { method: "POST" }));
  const done = () => {
    onClose();
    announce(isOn ? "The adapter is being deployed" : "The adapter is being undeployed", true);
    onChange();
  };
  return html`<${ConfirmDialog}
    title=${isOn ? "Deploy the adapter?" : "Undeploy the adapter?"} verb=${isOn ? "Deploy" : "Undeploy"} action=${action} onDone=${done} onClose=${onClose}
  >
    <p class="mono">${item.name}</p>
    <p>
      ${isOn
        ? "A pool of engines for its base model serves it in this namespace, beside other adapters of the same model. It uses GPUs until it is undeployed, and is kept whatever the retention says."
        : "Requests to it fail from then on. The pool ends together with its last adapter. The adapter itself stays."}
    </p>
  <//>`;
}

/** @param {{item: any, onClose: () => void}} props */
export function DownloadDialog({ item, onClose }) {
  const command = `rlrun download ${item.name} ./${item.name} -n ${item.namespace}`;
  return html`<${Dialog} title="Download" onClose=${onClose} footer=${html`<button class="primary" onClick=${() => copy(command)}>Copy the command</button>`}>
    <p>The command line downloads all files${item.sizeBytes ? ` (${size(item.sizeBytes)})` : ""}, checks them, and goes on where it was interrupted:</p>
    <pre class="code">${command}</pre>
  <//>`;
}

/** @param {{item: any, kind: "adapters" | "checkpoints", onClose: () => void, onChange: () => void}} props */
export function DeleteDialog({ item, kind, onClose, onChange }) {
  const path = `${pathOf("namespaces", item.namespace, kind)}/${encodeURIComponent(item.name)}`;
  const action = useAction(() => request(path, { method: "DELETE" }));
  const noun = kind === "adapters" ? "adapter" : "checkpoint";
  const done = () => {
    onClose();
    announce(`The ${noun} is being deleted`, true);
    onChange();
  };
  return html`<${ConfirmDialog} title=${`Delete the ${noun}?`} verb="Delete" isDanger action=${action} onDone=${done} onClose=${onClose}>
    <p class="mono">${item.name}</p>
    <p>Its files in S3 are deleted for good. ${kind === "checkpoints" ? "No run can continue from it then." : "It cannot be downloaded or deployed then."}</p>
  <//>`;
}
