/** Who is logged in. */
import { Problem, loggedOut, request } from "./api.js";
import { Store } from "./store.js";

/**
 * @typedef {object} Identity
 * @property {string} name
 * @property {string[]} groups
 * @property {string} [apiKey] id of the key, which may only read
 * @property {string} [namespace] of the key
 */

/** The user; null: nobody is logged in; undefined: not known yet. */
export const session = new Store(/** @type {Identity | null | undefined} */ (undefined));

loggedOut.subscribe(() => session.set(null));

/** Ask the server who the user is. Raises Problem if it does not answer. */
export async function readSession() {
  try {
    session.set(await request("whoami"));
  } catch (error) {
    if (!(error instanceof Problem) || error.status !== 401) throw error;
    session.set(null);
  }
}

/**
 * @typedef {object} LoginBody one of them
 * @property {string} [token] token or API key
 * @property {string} [code] of `rlrun open`
 * @property {{code: string, state: string}} [oidc] answer of the issuer
 */

/** Trade a credential for a cookie. @param {LoginBody} credential */
export async function logIn(credential) {
  const found = await request("session", { method: "POST", body: credential });
  session.set(found.identity);
}

/** True if browsers log in at an OIDC issuer. */
export const hasIssuer = document.querySelector('meta[name="rlrun-issuer"]') !== null;

/** Leave the page for the issuer, which sends the browser back with an answer in the query. */
export async function goToIssuer() {
  const { url } = await request("session:oidc", { method: "POST" });
  window.location.assign(url);
}

/** Return the answer of the issuer, null if there is none. It does not stay in the address. */
export function takeIssuerAnswer() {
  const query = new URLSearchParams(window.location.search);
  const state = query.get("state");
  if (!hasIssuer || state === null) return null;
  window.history.replaceState(null, "", window.location.pathname);
  const code = query.get("code");
  if (code !== null) return { code, state };
  // Links can hold any text: only what looks like a code of an error is shown.
  const error = /^[a-z_]{1,40}$/.exec(query.get("error") || "");
  throw new Problem({
    status: 0,
    title: "The issuer did not log you in",
    detail: `It answered ${error ? error[0] : "without a code"}. Log in again, or ask the platform team.`,
  });
}

export async function logOut() {
  await request("session", { method: "DELETE" });
  session.set(null);
}
