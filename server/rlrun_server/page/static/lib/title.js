/** Title of the browser's tab. */
import { useEffect } from "./html.js";

/** @param {string} title */
export function useTitle(title) {
  useEffect(() => {
    document.title = title ? `${title} · rlrun` : "rlrun";
  }, [title]);
}
