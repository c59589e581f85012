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

/** Trade a token, an API key or the code of `rlrun open` for a cookie. @param {{token?: string, code?: string}} credential */
export async function logIn(credential) {
  const found = await request("session", { method: "POST", body: credential });
  session.set(found.identity);
}

export async function logOut() {
  await request("session", { method: "DELETE" });
  session.set(null);
}
