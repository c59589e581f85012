/** Wide content that scrolls by itself. The keyboard reaches it while it is larger than its place. */
import { html, useEffect, useRef, useState } from "../lib/html.js";

/** @param {{label: string, style?: string, children?: unknown}} props style: a class for the region */
export function ScrollRegion({ label, style = "", children }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [isScrolling, setScrolling] = useState(false);
  useEffect(() => {
    const place = element.current;
    if (!place) return undefined;
    const measure = () => setScrolling(place.scrollWidth > place.clientWidth || place.scrollHeight > place.clientHeight + 1);
    const observer = new ResizeObserver(measure);
    observer.observe(place);
    for (const child of place.children) observer.observe(child);
    measure();
    return () => observer.disconnect();
  }, []);
  return html`<div class=${`scroll ${style}`} ref=${element} tabindex=${isScrolling ? 0 : undefined} role=${isScrolling ? "region" : undefined} aria-label=${isScrolling ? label : undefined}>
    ${children}
  </div>`;
}
