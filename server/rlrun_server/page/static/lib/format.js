/** Plain texts of numbers, times and sizes. Pure. */

const MISSING = "–";
/** @type {[number, string][]} */
const DECIMAL_UNITS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
/** @type {[number, string][]} */
const BINARY_UNITS = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]];

/**
 * Return a number with a few significant digits and without trailing zeros: 0.7063, 12.3, 5,210, 1.94e-6.
 * @param {number | null | undefined} value
 * @param {number} [digits]
 */
export function number(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  const size = Math.abs(value);
  if (size !== 0 && size < 1e-3) {
    const [base, exponent] = value.toExponential(Math.max(1, digits - 2)).split("e");
    return `${signed(String(Number(base)))}e${exponent}`;
  }
  if (size >= 1e7) return compact(value);
  if (size >= 1000) return signed(Math.round(value).toLocaleString("en-US"));
  return signed(String(Number(value.toPrecision(digits))));
}

/** Return a number with a fixed number of decimals. @param {number | null | undefined} value */
export function fixed(value, decimals = 3) {
  return value === null || value === undefined || !Number.isFinite(value) ? MISSING : signed(value.toFixed(decimals));
}

/** Return 5,210 as 5.2k. @param {number | null | undefined} value */
export function compact(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  const size = Math.abs(value);
  for (const [limit, unit] of DECIMAL_UNITS) {
    if (size >= limit) return signed(`${Number((value / limit).toPrecision(3))}${unit}`);
  }
  return number(value, 3);
}

/** @param {number | null | undefined} value a share of 1 */
export function percent(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return MISSING;
  const hundred = value * 100;
  return `${Math.abs(hundred) >= 10 || hundred === 0 ? Math.round(hundred) : number(hundred, 2)} %`;
}

/** @param {number | null | undefined} bytes */
export function size(bytes) {
  if (bytes === null || bytes === undefined || !Number.isFinite(bytes)) return MISSING;
  for (const [limit, unit] of BINARY_UNITS) {
    if (bytes >= limit) return `${Number((bytes / limit).toPrecision(3))} ${unit}`;
  }
  return `${bytes} B`;
}

/** Return seconds as 45 s, 12 min, 3 h 5 min, 2 d 4 h. @param {number | null | undefined} seconds */
export function duration(seconds) {
  if (seconds === null || seconds === undefined || !Number.isFinite(seconds)) return MISSING;
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 60) return seconds < 10 && seconds !== whole ? `${number(seconds, 2)} s` : `${whole} s`;
  if (whole < 3570) return `${Math.round(whole / 60)} min`;
  const [unit, part, bigUnit, restUnit] = whole < 86_400 - 1800 ? [3600, 60, "h", "min"] : [86_400, 3600, "d", "h"];
  // Rounded before it is divided, so that 60 min never remain.
  const rounded = Math.round(whole / part) * part;
  const big = Math.floor(rounded / unit);
  const rest = (rounded % unit) / part;
  return rest ? `${big} ${bigUnit} ${rest} ${restUnit}` : `${big} ${bigUnit}`;
}

/** Return the age of a time. @param {string | number | null | undefined} time */
export function age(time, now = Date.now()) {
  const at = typeof time === "number" ? time : Date.parse(time || "");
  return Number.isFinite(at) ? duration((now - at) / 1000) : MISSING;
}

/** Return a time in the user's zone. @param {string | number | null | undefined} time */
export function dateTime(time) {
  const at = new Date(time ?? Number.NaN);
  if (Number.isNaN(at.getTime())) return MISSING;
  return at.toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "medium" });
}

/** Return the hour of a time, with its day if that is not today. @param {string | number} time */
export function clock(time, now = new Date()) {
  const at = new Date(time);
  if (Number.isNaN(at.getTime())) return MISSING;
  const hour = at.toLocaleTimeString("en-GB");
  return at.toDateString() === now.toDateString()
    ? hour
    : `${at.toLocaleDateString("en-GB", { day: "numeric", month: "short" })} ${hour}`;
}

/** Return "3 runs" or "1 run". @param {number} count @param {string} noun */
export function plural(count, noun, nouns = `${noun}s`) {
  return `${count.toLocaleString("en-US")} ${count === 1 ? noun : nouns}`;
}

/** Return the step of a run, with its number of steps if that is known. @param {{step: number, maxSteps: number}} run */
export function steps({ step, maxSteps }) {
  return maxSteps > 0 ? `${step}/${maxSteps}` : String(step);
}

/** Return CamelCase as words: "Reward flat at zero". @param {string} reason */
export function words(reason) {
  const text = reason.replace(/([a-z0-9])([A-Z])/g, "$1 $2").toLowerCase();
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Return the name of a user; of a ServiceAccount its namespace and name. @param {string} user */
export function userName(user) {
  const found = /^system:serviceaccount:([^:]+):([^:]+)$/.exec(user);
  return found ? `${found[1]}/${found[2]}` : user;
}

function signed(text) {
  return text.replace(/^-/, "−");
}
