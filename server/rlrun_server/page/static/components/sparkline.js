/** Small line without axes. */
import { number } from "../lib/format.js";
import { html } from "../lib/html.js";

/**
 * @param {{values: (number | null)[], width?: number, height?: number, name?: string}} props
 */
export function Sparkline({ values, width = 96, height = 26, name = "Reward" }) {
  const points = /** @type {[number, number][]} */ (values.map((value, at) => [at, value]).filter(([, value]) => value !== null));
  if (points.length < 2) return null;
  const ys = points.map(([, y]) => y);
  const low = Math.min(...ys);
  const span = Math.max(...ys) - low || 1;
  const last = values.length - 1;
  const at = ([x, y]) => `${((x / last) * width).toFixed(1)} ${(height - 2 - ((y - low) / span) * (height - 4)).toFixed(1)}`;
  const line = points.map(at).join("L");
  const area = `M${at(points[0]).split(" ")[0]} ${height}L${line}L${at(points[points.length - 1]).split(" ")[0]} ${height}Z`;
  const text = `${name}: first ${number(ys[0])}, last ${number(ys.at(-1))}, best ${number(low + span)}`;
  return html`<svg class="spark" width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${text}>
    <path class="area" d=${area} /><path d=${`M${line}`} />
  </svg>`;
}
