/** Text of users: characters that change the order of others, or have no width, are shown as the command line shows them. */

/** Those of the command line, rlrun_cli/terminal/errors.py. */
const INVISIBLE = new RegExp(
  "[\\u00ad\\u034f\\u061c\\u115f\\u1160\\u17b4\\u17b5\\u180b-\\u180f\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f" +
    "\\u3164\\ufeff\\uffa0\\ufff0-\\ufffb\\u{1d173}-\\u{1d17a}\\u{e0000}-\\u{e0fff}]",
  "gu",
);
/** Attributes whose values are read by people. */
const SHOWN = ["title", "aria-label", "alt", "placeholder"];

/** @param {string} found */
function escape(found) {
  const code = /** @type {number} */ (found.codePointAt(0));
  return code < 0x10000 ? `\\u${code.toString(16).padStart(4, "0")}` : `\\U${code.toString(16).padStart(8, "0")}`;
}

/** Return a child of an element with its text escaped. @param {any} child @returns {any} */
export function visibleText(child) {
  if (typeof child === "string") return child.replace(INVISIBLE, escape);
  return Array.isArray(child) ? child.map(visibleText) : child;
}

/** Return the attributes of an element with those that are shown escaped. @param {any} props @returns {any} */
export function visibleProps(props) {
  const shown = SHOWN.filter((name) => typeof props?.[name] === "string");
  return shown.length ? { ...props, ...Object.fromEntries(shown.map((name) => [name, visibleText(props[name])])) } : props;
}
