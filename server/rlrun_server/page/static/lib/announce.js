/** Polite messages for screen readers, and short ones on the screen. */
import { Store } from "./store.js";

/** Newest message. */
export const announcement = new Store({ text: "", id: 0, isShown: false });

/**
 * Tell the user of a change. `isShown`: also as a text at the bottom of the page.
 * @param {string} text
 */
export function announce(text, isShown = false) {
  announcement.set({ text, id: announcement.value.id + 1, isShown });
}
