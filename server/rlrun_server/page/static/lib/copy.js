/** The clipboard. */
import { announce } from "./announce.js";

/** Copy a text, and say so. @param {string} text */
export async function copy(text) {
  try {
    await navigator.clipboard.writeText(text);
    announce("Copied", true);
  } catch {
    announce("The browser does not let the page copy. Select the text and copy it yourself.", true);
  }
}
