/** Whether an element has come into view. */
import { useEffect, useRef, useState } from "./html.js";

/**
 * Return a ref, and whether its element was in view at least once.
 * @param {string} [margin]
 */
export function useSeen(margin = "200px") {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [isSeen, setSeen] = useState(false);
  useEffect(() => {
    if (isSeen || !element.current) return undefined;
    const observer = new IntersectionObserver(([entry]) => entry.isIntersecting && setSeen(true), { rootMargin: margin });
    observer.observe(element.current);
    return () => observer.disconnect();
  }, [isSeen]);
  return /** @type {const} */ ([element, isSeen]);
}
