/** Modal dialogs. */
import { html, useEffect, useId, useRef } from "../lib/html.js";
import { route } from "../lib/router.js";
import { ProblemView } from "./problem.js";

/** @param {{title: string, onClose: () => void, children?: unknown, footer?: unknown}} props */
export function Dialog({ title, onClose, children, footer }) {
  const element = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const id = useId();
  useEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    // Back, or another view, closes it too.
    const unsubscribe = route.subscribe(onClose);
    return () => {
      unsubscribe();
      // The browser gives the focus back to what had it before.
      if (dialog?.open) dialog.close();
    };
  }, []);
  return html`<dialog
    ref=${element}
    aria-labelledby=${id}
    onClose=${onClose}
    onClick=${(event) => event.target === element.current && onClose()}
  >
    <div>
      <div class="row between">
        <h2 id=${id}>${title}</h2>
        <button class="quiet small" onClick=${onClose} aria-label="Close">✕</button>
      </div>
      ${children} ${footer && html`<footer>${footer}</footer>`}
    </div>
  </dialog>`;
}

/**
 * Dialog that asks before an action. `action` is that of `useAction`.
 * @param {{title: string, verb: string, isDanger?: boolean, isReady?: boolean, action: any, onDone: (found: any) => void, onClose: () => void, children?: unknown}} props
 */
export function ConfirmDialog({ title, verb, isDanger, isReady = true, action, onDone, onClose, children }) {
  const confirm = async () => {
    const found = await action.run();
    if (found) onDone(found);
  };
  const footer = html`
    <button onClick=${onClose}>Cancel</button>
    <button class=${isDanger ? "danger" : "primary"} disabled=${action.isBusy || !isReady} onClick=${confirm}>
      ${action.isBusy ? "Working …" : verb}
    </button>
  `;
  return html`<${Dialog} title=${title} onClose=${onClose} footer=${footer}>
    ${children} ${action.problem && html`<${ProblemView} problem=${action.problem} />`}
  <//>`;
}
