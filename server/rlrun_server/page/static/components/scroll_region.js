/** Wide content that scrolls by itself. The keyboard reaches it while it is wider than its place. */
import { html, useEffect, useRef, useState } from "../lib/html.js";

/** @param {{label: string, children?: unknown}} props */
export function ScrollRegion({ label, children }) {
  const element = useRef(/** @type {HTMLElement | null} */ (null));
  const [isWide, setWide] = useState(false);
  useEffect(() => {
    const place = element.current;
    if (!place) return undefined;
    const measure = () => setWide(place.scrollWidth > place.clientWidth);
    const observer = new ResizeObserver(measure);
    observer.observe(place);
    for (const child of place.children) observer.observe(child);
    measure();
    return () => observer.disconnect();
  }, []);
  return html`<div class="scroll" ref=${element} tabindex=${isWide ? 0 : undefined} role=${isWide ? "region" : undefined} aria-label=${isWide ? label : undefined}>
    ${children}
  </div>`;
}
