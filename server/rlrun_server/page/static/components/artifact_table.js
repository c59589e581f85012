/** Tables of checkpoints and adapters, and what can be done with them. */
import { age, dateTime, fixed, size } from "../lib/format.js";
import { html, useState } from "../lib/html.js";
import { href } from "../lib/router.js";
import { ContinueDialog } from "./continue_dialog.js";
import { DeleteDialog, DeployDialog, DownloadDialog } from "./artifact_dialogs.js";
import { Phase } from "./phase.js";
import { ScrollRegion } from "./scroll_region.js";

const DEPLOYABLE = ["NotDeployed", "DeployFailed", "Unloading", undefined];

/** @param {{items: any[], hasRun: boolean, onChange: () => void}} props */
export function AdapterTable({ items, hasRun, onChange }) {
  const [open, setOpen] = useState(/** @type {{dialog: any, props: any} | null} */ (null));
  const show = (dialog, item, more = {}) => setOpen({ dialog, props: { item, ...more } });
  return html`<${Table} caption="Adapters" hasRun=${hasRun} hasState items=${items} open=${open} onClose=${() => setOpen(null)} onChange=${onChange}>
    ${(item) => html`
      ${item.deploymentState === "Deployed" && html`<a class="button small primary" href=${href(["chat"], { ns: item.namespace, adapter: item.name })}>Chat</a>`}
      ${DEPLOYABLE.includes(item.deploymentState) && !item.deployed
        ? html`<button class="small" disabled=${item.phase !== "Ready"} onClick=${() => show(DeployDialog, item, { isOn: true })}>Deploy</button>`
        : html`<button class="small" onClick=${() => show(DeployDialog, item, { isOn: false })}>Undeploy</button>`}
      <button class="small" disabled=${item.phase !== "Ready"} onClick=${() => show(DownloadDialog, item)}>Download</button>
      <button class="small danger" disabled=${item.deployed} title=${item.deployed ? "Undeploy it first" : ""} onClick=${() => show(DeleteDialog, item, { kind: "adapters" })}>Delete</button>
    `}
  <//>`;
}

/** @param {{items: any[], hasRun: boolean, owner?: any, onChange: () => void}} props */
export function CheckpointTable({ items, hasRun, owner, onChange }) {
  const [open, setOpen] = useState(/** @type {{dialog: any, props: any} | null} */ (null));
  const show = (dialog, item, more = {}) => setOpen({ dialog, props: { item, ...more } });
  return html`<${Table} caption="Checkpoints" hasRun=${hasRun} items=${items} open=${open} onClose=${() => setOpen(null)} onChange=${onChange}>
    ${(item) => html`
      <button class="small" disabled=${item.phase !== "Ready"} onClick=${() => show(ContinueDialog, item, { owner })}>Continue</button>
      <button class="small" disabled=${item.phase !== "Ready"} onClick=${() => show(DownloadDialog, item)}>Download</button>
      <button class="small danger" onClick=${() => show(DeleteDialog, item, { kind: "checkpoints" })}>Delete</button>
    `}
  <//>`;
}

function Table({ caption, items, hasRun, hasState, open, onClose, onChange, children }) {
  return html`
    <${ScrollRegion} label=${`Table: ${caption}`}>
      <table class="artifacts">
        <caption class="visually-hidden">${caption}, newest first</caption>
        <thead>
          <tr>
            <th scope="col">Name</th>
            ${hasRun && html`<th scope="col">Run</th>`}
            <th scope="col" class="num">Step</th>
            <th scope="col" class="num">Reward</th>
            <th scope="col" class="num wide">Size</th>
            <th scope="col">State</th>
            <th scope="col" class="num wide">Age</th>
            <th scope="col"><span class="visually-hidden">Actions</span></th>
          </tr>
        </thead>
        <tbody>
          ${items.map(
            (item) =>
              html`<tr key=${item.uid}>
                <th scope="row" class="mono artifact-name">${item.name}${item.sharedWith?.length > 0 && html`<div class="muted sub">shared with ${item.sharedWith.join(", ")}</div>`}</th>
                ${hasRun && html`<td><a href=${href(["runs", item.namespace, item.run])}>${item.run}</a></td>`}
                <td class="num">${item.step}</td>
                <td class="num">${fixed(item.reward)}</td>
                <td class="num wide">${size(item.sizeBytes)}</td>
                <td>
                  <${Phase} phase=${hasState && item.deploymentState && item.deploymentState !== "NotDeployed" ? item.deploymentState : item.phase} />
                  ${item.message && html`<div class="muted sub">${item.message}</div>`}
                  ${item.deploymentModel && html`<div class="muted sub mono">${item.deploymentModel}</div>`}
                </td>
                <td class="num wide muted" title=${dateTime(item.createdAt)}>${age(item.createdAt)}</td>
                <td><div class="row actions-cell">${children(item)}</div></td>
              </tr>`,
          )}
        </tbody>
      </table>
    <//>
    ${open && html`<${open.dialog} ...${open.props} onClose=${onClose} onChange=${onChange} />`}
  `;
}
