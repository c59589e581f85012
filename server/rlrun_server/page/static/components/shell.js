/** Frame of every page: navigation, theme, connection, messages. */
import { announcement } from "../lib/announce.js";
import { offlineSince } from "../lib/api.js";
import { age, userName } from "../lib/format.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { useKeys } from "../lib/keys.js";
import { href, navigate, useRoute } from "../lib/router.js";
import { useStore } from "../lib/store.js";
import { chooseTheme, theme } from "../lib/theme.js";
import { session } from "../lib/session.js";
import { HelpDialog } from "./help.js";

/** Files of the page are not beside the document. */
const ICON = new URL("../icon.svg", import.meta.url).href;
const PLACES = [
  { key: "r", name: "runs", title: "Runs" },
  { key: "a", name: "artifacts", title: "Artifacts" },
  { key: "c", name: "compare", title: "Compare" },
  { key: "h", name: "chat", title: "Chat" },
  { key: "u", name: "usage", title: "Usage" },
];

export function Shell({ children }) {
  const { path } = useRoute();
  const user = useStore(session);
  const shown = useStore(theme);
  const [isHelpOpen, setHelpOpen] = useState(false);
  const place = path[0] || "runs";
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const isFirst = useRef(true);
  useEffect(() => {
    // After a change of page the keyboard and the screen reader start in the new content.
    if (!isFirst.current) main.current?.focus({ preventScroll: true });
    isFirst.current = false;
  }, [place]);
  useKeys({
    "?": () => setHelpOpen(true),
    "/": () => /** @type {HTMLElement | null} */ (document.querySelector("input[type=search]"))?.focus(),
    "g s": () => path[0] === "runs" && path.length > 2 && navigate(href(["runs", path[1], path[2], "samples"])),
    ...Object.fromEntries(PLACES.map(({ key, name }) => [`g ${key}`, () => navigate(href([name]))])),
  });
  const other = shown === "dark" ? "light" : "dark";
  return html`
    <a class="skip" href="#main" onClick=${(event) => {
      event.preventDefault();
      main.current?.focus();
    }}>Skip to the content</a>
    <header class="top">
      <a class="brand" href=${href(["runs"])}><img src=${ICON} alt="" />rlrun</a>
      <nav class="nav" aria-label="Pages">
        ${user &&
        PLACES.map(
          ({ name, title }) =>
            html`<a key=${name} href=${href([name])} aria-current=${place === name ? "page" : undefined}>${title}</a>`,
        )}
      </nav>
      <div class="top-end">
        ${user && html`<span class="account" title=${user.name}>${userName(user.name)}</span>`}
        <button class="quiet small" onClick=${() => chooseTheme(other)} aria-label=${`Show the ${other} theme`} title="Theme">
          <${ThemeIcon} isDark=${shown === "dark"} />
        </button>
        <button class="quiet small" onClick=${() => setHelpOpen(true)} aria-label="Keys and help" title="Keys and help (?)">?</button>
        ${user && html`<a class="button quiet small" href=${href(["login"], { leave: 1 })}>Log out</a>`}
      </div>
    </header>
    <${ConnectionBanner} />
    <main id="main" tabindex="-1" ref=${main}>${children}</main>
    <${Messages} />
    ${isHelpOpen && html`<${HelpDialog} onClose=${() => setHelpOpen(false)} />`}
  `;
}

function ThemeIcon({ isDark }) {
  return html`<svg width="17" height="17" viewBox="0 0 24 24" aria-hidden="true" fill="none" stroke="currentColor" stroke-width="2">
    ${isDark
      ? html`<path d="M20 14.5A8.5 8.5 0 1 1 9.5 4a7 7 0 0 0 10.5 10.5z" />`
      : html`<circle cx="12" cy="12" r="4.2" /><path
            d="M12 2v3M12 19v3M2 12h3M19 12h3M5 5l2 2M17 17l2 2M5 19l2-2M17 7l2-2"
          />`}
  </svg>`;
}

function ConnectionBanner() {
  const since = useStore(offlineSince);
  const [, setTick] = useState(0);
  useEffect(() => {
    if (since === null) return undefined;
    const timer = setInterval(() => setTick((tick) => tick + 1), 5000);
    return () => clearInterval(timer);
  }, [since]);
  return html`<div role="status">
    ${since !== null &&
    html`<div class="offline">
      The server has not answered for ${age(since)}. What you see is from before; the page keeps trying, and runs go on.
    </div>`}
  </div>`;
}

function Messages() {
  const found = useStore(announcement);
  const [isVisible, setVisible] = useState(false);
  useEffect(() => {
    if (!found.isShown) return undefined;
    setVisible(true);
    const timer = setTimeout(() => setVisible(false), 5000);
    return () => clearTimeout(timer);
  }, [found.id]);
  return html`
    <div class="visually-hidden" aria-live="polite">${found.text}</div>
    ${isVisible && html`<div class="toast" aria-hidden="true">${found.text}</div>`}
  `;
}
