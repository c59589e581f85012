/**
 * Address of the view. It is in the fragment, so that the server serves one file and any prefix works.
 *
 * `#/runs/team/first/samples?step=40` has the path ["runs", "team", "first", "samples"] and the query step=40.
 */
import { Store, useStore } from "./store.js";

/**
 * @typedef {object} Route
 * @property {string[]} path
 * @property {URLSearchParams} query
 * @property {string} text the fragment without #
 */

/**
 * @param {string} fragment
 * @returns {Route}
 */
export function parseFragment(fragment) {
  const text = fragment.replace(/^#/, "");
  const [path, query = ""] = split(text, "?");
  return { path: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query), text };
}

export const route = new Store(parseFragment(window.location.hash));

window.addEventListener("hashchange", () => route.set(parseFragment(window.location.hash)));

/** @returns {Route} */
export function useRoute() {
  return useStore(route);
}

/**
 * Return the address of a view for `href`. Undefined, null and empty values of the query are left out.
 * @param {(string | number)[]} path
 * @param {Record<string, unknown> | URLSearchParams} [query]
 */
export function href(path, query = {}) {
  const found = query instanceof URLSearchParams ? query : toQuery(query);
  const text = found.toString();
  return `#/${path.map((part) => encodeURIComponent(part)).join("/")}${text ? `?${text}` : ""}`;
}

/**
 * Show another view.
 * @param {string} address as of `href`
 * @param {{replace?: boolean}} [options] replace: without an entry in the history
 */
export function navigate(address, { replace = false } = {}) {
  if (replace) window.history.replaceState(null, "", address);
  else window.history.pushState(null, "", address);
  route.set(parseFragment(window.location.hash));
}

/**
 * Change parts of the present view's query; empty values remove them.
 * @param {Record<string, unknown>} changes
 * @param {{replace?: boolean}} [options]
 */
export function setQuery(changes, { replace = true } = {}) {
  const { path, query } = route.value;
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    next.delete(name);
    for (const one of Array.isArray(value) ? value : [value]) if (isSet(one)) next.append(name, String(one));
  }
  navigate(href(path, next), { replace });
}

/** @param {Record<string, unknown>} values */
export function toQuery(values) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(values)) {
    for (const one of Array.isArray(value) ? value : [value]) if (isSet(one)) query.append(name, String(one));
  }
  return query;
}

function isSet(value) {
  return value !== undefined && value !== null && value !== "" && value !== false;
}

function split(text, mark) {
  const at = text.indexOf(mark);
  return at < 0 ? [text] : [text.slice(0, at), text.slice(at + 1)];
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
