/** Steps as bars of their mean reward, of which one is chosen. */
import { fixed, plural } from "../lib/format.js";
import { html, useEffect, useRef } from "../lib/html.js";
import { useStore } from "../lib/store.js";
import { theme } from "../lib/theme.js";
import { Range } from "./range.js";

const HEIGHT = 54;

/**
 * @param {{
 *   strip: {step: number, mean: number | null, low: number, high: number, count: number}[], at: number, isFollowing: boolean, isLive: boolean,
 *   onStep: (step: number) => void, onMove: (by: number) => void, onFollow: () => void,
 * }} props
 */
export function StepStrip({ strip, at, isFollowing, isLive, onStep, onMove, onFollow }) {
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const shown = useStore(theme);
  useEffect(() => {
    const element = canvas.current;
    if (!element) return undefined;
    const draw = () => drawStrip(element, strip, at);
    draw();
    const observer = new ResizeObserver(draw);
    observer.observe(element);
    return () => observer.disconnect();
  }, [strip, at, shown]);
  const current = strip[at];
  const text = textOf(current);
  const pick = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const index = Math.floor(((event.clientX - box.left) / box.width) * strip.length);
    onStep(strip[Math.max(0, Math.min(strip.length - 1, index))].step);
  };
  return html`<div class="strip">
    <div class="row">
      <button class="small" onClick=${() => onMove(-1)} disabled=${at <= 0} aria-label="Previous step" title="Key [">‹</button>
      <label class="inline-field">
        <span>Step</span>
        <input type="number" class="step-number" min=${strip[0]?.step} max=${strip.at(-1)?.step} value=${current?.step}
          onChange=${(event) => event.currentTarget.value !== "" && onStep(Number(event.currentTarget.value))} />
      </label>
      <button class="small" onClick=${() => onMove(1)} disabled=${at >= strip.length - 1} aria-label="Next step" title="Key ]">›</button>
      <button class="small" aria-pressed=${String(isFollowing)} onClick=${onFollow} title="Key f">${isLive ? "Follow the newest" : "Last"}</button>
      <span class="muted" role="status">${text}</span>
    </div>
    <div class="bars">
      <canvas ref=${canvas} onClick=${pick} aria-hidden="true" />
      <${Range}
        value=${at} min=${0} max=${Math.max(0, strip.length - 1)} label="Step" textOf=${(index) => textOf(strip[index])}
        onValue=${(index) => onStep(strip[Math.min(index, strip.length - 1)].step)}
      />
    </div>
  </div>`;
}

function textOf(entry) {
  if (!entry) return "";
  return `Step ${entry.step}${entry.mean === null ? "" : `, mean reward ${fixed(entry.mean)}`}, ${plural(entry.count, "rollout")}`;
}

function drawStrip(canvas, strip, at) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.clientWidth;
  canvas.width = width * ratio;
  canvas.height = HEIGHT * ratio;
  const draw = canvas.getContext("2d");
  if (!draw || !width) return;
  draw.scale(ratio, ratio);
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const means = strip.map(({ mean }) => mean).filter((mean) => mean !== null);
  const low = Math.min(0, ...means);
  const span = Math.max(...means, low + 1e-9) - low || 1;
  const room = width / strip.length;
  const gap = room > 4 ? 1 : 0;
  strip.forEach(({ mean }, index) => {
    const height = mean === null ? 2 : 3 + ((mean - low) / span) * (HEIGHT - 6);
    draw.fillStyle = index === at ? color("--text") : mean === null ? color("--control") : color("--accent");
    draw.globalAlpha = index === at ? 1 : 0.55;
    draw.fillRect(index * room, HEIGHT - height, Math.max(index === at ? 2 : 0.6, room - gap), height);
  });
}
