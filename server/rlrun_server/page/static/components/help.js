/** Dialog with the keys of the page. */
import { html } from "../lib/html.js";
import { Dialog } from "./dialog.js";

const KEYS = [
  ["?", "This help"],
  ["/", "Search"],
  ["g r · g a · g c · g h · g u", "Runs, artifacts, compare, chat, usage"],
  ["g s", "Samples of this run"],
  ["1 – 6", "Tabs of a run"],
  ["j · k", "Next and previous row, or rollout of a group"],
  ["Enter · x", "Open the row; select it for a comparison"],
  ["J · K", "Next and previous group"],
  ["[ · ]", "Previous and next step"],
  ["{ · }", "Ten steps back and forward"],
  ["s · d", "Rollouts side by side; differences"],
  ["c", "Copy the rollout as JSON"],
  ["f", "Follow: newest step, newest lines"],
  ["t", "Charts as tables"],
  ["Esc", "Back, or leave a field"],
];

export function HelpDialog({ onClose }) {
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <table>
      <caption class="visually-hidden">Keys of the page</caption>
      <tbody>
        ${KEYS.map(
          ([keys, text]) =>
            html`<tr key=${keys}><th scope="row">${keys.split(" · ").map((key, at) => html`${at > 0 && " "}<kbd>${key}</kbd>`)}</th><td>${text}</td></tr>`,
        )}
      </tbody>
    </table>
    <p class="muted">Keys do nothing while you type. Every action is also a button. The address holds the whole view: share it, or reload.</p>
    <p class="muted">Scripts use the same interface: <a href="rlrun/v1/openapi.json">OpenAPI document</a>.</p>
  <//>`;
}
