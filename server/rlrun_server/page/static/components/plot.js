/** Lines drawn by uPlot. */
import { smoothed, stacked } from "../lib/chart_data.js";
import { compact, number } from "../lib/format.js";
import { html, useEffect, useRef } from "../lib/html.js";
import { useStore } from "../lib/store.js";
import { theme } from "../lib/theme.js";

export const COLORS = 8;
const DASHES = [[], [7, 3], [2, 3], [9, 3, 2, 3]];
const MARK_DASH = [3, 4];

/** Dash of a line: lines of one color never have the same one. @param {number} at */
export function dashOf(at) {
  return DASHES[(Math.floor(at / COLORS) + at) % DASHES.length];
}

/** Variable of the color of a line. @param {number} at */
export function colorOf(at) {
  return `--c${(at % COLORS) + 1}`;
}

/**
 * @typedef {object} Mark
 * @property {number} x
 * @property {string} label
 * @property {string} kind
 */

/**
 * @typedef {object} PlotProps
 * @property {number[]} xs
 * @property {import("../lib/chart_data.js").Line[]} lines
 * @property {boolean} isTime xs are seconds since 1970
 * @property {boolean} isLog
 * @property {boolean} isStacked
 * @property {number} smoothing
 * @property {number} height
 * @property {string} syncKey charts with the same key share their cursor
 * @property {Mark[]} [marks]
 * @property {(at: number | null) => void} [onCursor]
 * @property {(x: number) => void} [onPick] double click chooses a point
 */

/** @param {PlotProps} props */
export function Plot(props) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const newest = useRef(props);
  newest.current = props;
  const shown = useStore(theme);
  const { xs, lines, isTime, isLog, isStacked, smoothing, height, syncKey, marks } = props;
  const shape = JSON.stringify([
    shown, isTime, isLog, isStacked, smoothing > 0, height, syncKey, lines.map((line) => [line.label, line.isPoints, Boolean(line.low)]),
  ]);
  useEffect(() => {
    if (!window.uPlot || !place.current) return undefined;
    const element = place.current;
    const made = new window.uPlot(optionsOf(newest, element), dataOf(newest.current), element);
    plot.current = made;
    const observer = new ResizeObserver(() => made.setSize({ width: element.clientWidth, height }));
    observer.observe(element);
    return () => {
      observer.disconnect();
      plot.current = null;
      made.destroy();
    };
  }, [shape]);
  useEffect(() => {
    plot.current?.setData(dataOf(props));
  }, [xs, lines, smoothing]);
  useEffect(() => {
    plot.current?.redraw(false);
  }, [marks]);
  if (!window.uPlot) return html`<p class="muted">The library of charts could not be loaded. Reload the page, or show tables.</p>`;
  return html`<div ref=${place} />`;
}

function dataOf({ xs, lines, isLog, isStacked, smoothing }) {
  const positive = (values) => (isLog ? values.map((value) => (value !== null && value > 0 ? value : null)) : values);
  if (isStacked) return [xs, ...stacked(lines.map((line) => line.values))];
  const columns = [];
  for (const line of lines) {
    const isSmoothed = smoothing > 0 && !line.isPoints;
    columns.push(positive(isSmoothed ? smoothed(line.values, smoothing) : line.values));
    if (isSmoothed) columns.push(positive(line.values));
    if (line.low) columns.push(positive(line.high), positive(line.low));
  }
  return [xs, ...columns];
}

function optionsOf(newest, element) {
  const { lines, isTime, isLog, isStacked, smoothing, height, syncKey } = newest.current;
  const style = getComputedStyle(document.documentElement);
  const color = (name) => style.getPropertyValue(name).trim();
  const series = [{}];
  const bands = [];
  lines.forEach((line, at) => {
    const stroke = color(colorOf(at));
    const index = series.length;
    series.push(seriesOf(line, stroke, at, isStacked));
    if (isStacked) {
      if (at > 0) bands.push({ series: [index, index - 1], fill: `${stroke}55` });
      return;
    }
    if (smoothing > 0 && !line.isPoints) series.push({ stroke: `${stroke}44`, width: 1, points: { show: false }, spanGaps: true });
    if (line.low) {
      const top = series.length;
      const hidden = { stroke: "transparent", width: 0, points: { show: false } };
      series.push(hidden, hidden);
      bands.push({ series: [top, top + 1], fill: `${stroke}26` });
    }
  });
  const axis = { stroke: color("--muted"), grid: { stroke: color("--border"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
  return {
    width: element.clientWidth || 300,
    height,
    padding: [10, 8, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: syncKey, setSeries: false },
      points: { size: 7 },
      drag: { x: true, y: false },
      focus: { prox: -1 },
    },
    scales: { x: { time: isTime }, y: isLog ? { distr: 3 } : { range: rangeOf } },
    axes: [
      { ...axis, space: 60, size: 28, ...(isTime ? {} : { values: (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? compact(tick) : "")) }) },
      { ...axis, size: 56, space: 32, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : number(tick, 3))) },
    ],
    series,
    bands,
    hooks: {
      setCursor: [(made) => newest.current.onCursor?.(made.cursor.idx ?? null)],
      drawAxes: [(made) => drawMarks(made, newest.current.marks ?? [], color)],
      ready: [
        (made) => {
          made.over.addEventListener("click", (event) => {
            const { onPick, xs } = newest.current;
            const at = made.cursor.idx;
            if (onPick && event.altKey && at !== null && at !== undefined) onPick(xs[at]);
          });
        },
      ],
    },
  };
}

function seriesOf(line, stroke, at, isStacked) {
  if (line.isPoints) {
    return { stroke, width: 1.5, dash: [3, 4], spanGaps: true, points: { show: true, size: 7, fill: stroke, stroke } };
  }
  return {
    stroke,
    width: isStacked ? 1 : 2,
    dash: isStacked ? [] : dashOf(at),
    spanGaps: true,
    fill: isStacked && at === 0 ? `${stroke}55` : undefined,
    points: { show: (made, index) => made.data[index].filter((value) => value !== null).length < 3, size: 5 },
  };
}

/** Range with some room, also for a line that does not change. */
function rangeOf(_, low, high) {
  if (low === null || high === null) return [0, 1];
  const room = (high - low) * 0.08 || Math.abs(high) * 0.1 || 0.5;
  const bottom = low >= 0 && low - room < 0 ? 0 : low - room;
  return [bottom, high + room];
}

function drawMarks(made, marks, color) {
  const { ctx, bbox } = made;
  const { min, max } = made.scales.x;
  ctx.save();
  ctx.strokeStyle = color("--control");
  ctx.fillStyle = color("--muted");
  ctx.lineWidth = window.devicePixelRatio;
  ctx.setLineDash(MARK_DASH.map((part) => part * window.devicePixelRatio));
  for (const mark of marks) {
    if (mark.x < min || mark.x > max) continue;
    const x = Math.round(made.valToPos(mark.x, "x", true)) + 0.5;
    ctx.globalAlpha = 0.7;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.globalAlpha = 1;
    drawGlyph(ctx, mark.kind, x, bbox.top, 4 * window.devicePixelRatio);
  }
  ctx.restore();
}

/** Marks differ in shape: triangle for checkpoints, square for adapters, disc for the rest. */
function drawGlyph(ctx, kind, x, y, size) {
  ctx.beginPath();
  if (kind === "checkpoint") {
    ctx.moveTo(x - size, y - size);
    ctx.lineTo(x + size, y - size);
    ctx.lineTo(x, y + size);
  } else if (kind === "adapter") ctx.rect(x - size, y - size, 2 * size, 2 * size);
  else ctx.arc(x, y, size, 0, 2 * Math.PI);
  ctx.fill();
}
