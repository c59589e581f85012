/** Slider whose value counts when it rests: each value may be a request, and an entry of the address. */
import { html, useEffect, useRef, useState } from "../lib/html.js";

const REST_MS = 120;

/** @param {{value: number, min: number, max: number, step?: number, label?: string, textOf?: (value: number) => string, onValue: (value: number) => void}} props */
export function Range({ value, min, max, step = 1, label, textOf, onValue }) {
  const [shown, setShown] = useState(value);
  const timer = useRef(0);
  useEffect(() => setShown(value), [value]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const change = (event) => {
    const next = Number(event.currentTarget.value);
    setShown(next);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onValue(next), REST_MS);
  };
  return html`<input
    type="range" min=${min} max=${max} step=${step} value=${shown} aria-label=${label} aria-valuetext=${textOf?.(shown)} onInput=${change}
  />`;
}
