/** Keys of the page. Single keys do nothing while the user types. */
import { useEffect, useRef } from "./html.js";

/** @type {{keys: Record<string, (event: KeyboardEvent) => void>}[]} */
const layers = [];
let prefix = "";
let prefixTimer = 0;

/**
 * Bind keys while a component is shown. The newest binding of a key wins. "g r" is g, then r.
 * @param {Record<string, (event: KeyboardEvent) => void>} keys
 */
export function useKeys(keys) {
  const layer = useRef({ keys });
  layer.current.keys = keys;
  useEffect(() => {
    layers.push(layer.current);
    return () => {
      layers.splice(layers.indexOf(layer.current), 1);
    };
  }, []);
}

/** Return whether keys belong to a field that the user types into. @param {EventTarget | null} target */
export function isTyping(target) {
  if (!(target instanceof HTMLElement)) return false;
  if (target instanceof HTMLInputElement) return !["checkbox", "radio", "range", "button"].includes(target.type);
  return target.isContentEditable || ["TEXTAREA", "SELECT"].includes(target.tagName);
}

function find(key) {
  for (let at = layers.length - 1; at >= 0; at -= 1) if (layers[at].keys[key]) return layers[at].keys[key];
  return undefined;
}

window.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") /** @type {HTMLElement} */ (event.target).blur();
    return;
  }
  // An open dialog has its own keys, and the browser closes it.
  if (document.querySelector("dialog[open]")) return;
  const wanted = prefix ? `${prefix} ${event.key}` : event.key;
  prefix = "";
  clearTimeout(prefixTimer);
  const handler = find(wanted);
  if (handler) {
    event.preventDefault();
    handler(event);
  } else if (layers.some(({ keys }) => Object.keys(keys).some((name) => name.startsWith(`${event.key} `)))) {
    prefix = event.key;
    prefixTimer = setTimeout(() => {
      prefix = "";
    }, 1500);
  }
});
