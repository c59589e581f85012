/** Start of the page: who is logged in, and which view the address names. */
import { Lazy } from "./components/lazy.js";
import { Shell } from "./components/shell.js";
import { Empty, ProblemView } from "./components/problem.js";
import { html, render, useEffect, useState } from "./lib/html.js";
import { asProblem } from "./lib/resource.js";
import { href, navigate, route, useRoute } from "./lib/router.js";
import { hasIssuer, readSession, session } from "./lib/session.js";
import { useStore } from "./lib/store.js";
import { LoginPage } from "./pages/login.js";
import { RunsPage } from "./pages/runs.js";

/** Pages that are loaded when they are opened. */
const LAZY = {
  run: () => import("./pages/run.js").then((module) => module.RunPage),
  compare: () => import("./pages/compare.js").then((module) => module.ComparePage),
  artifacts: () => import("./pages/artifacts.js").then((module) => module.ArtifactsPage),
  chat: () => import("./pages/chat.js").then((module) => module.ChatPage),
  usage: () => import("./pages/usage.js").then((module) => module.UsagePage),
};

function App() {
  const user = useStore(session);
  const { path, query, text } = useRoute();
  const [problem, setProblem] = useState(/** @type {import("./lib/api.js").Problem | null} */ (null));
  const start = () => {
    setProblem(null);
    readSession().catch((error) => setProblem(asProblem(error)));
  };
  const isLogin = path[0] === "login" || text.startsWith("login=");
  useEffect(() => {
    if (!isLogin) start();
  }, []);
  useEffect(() => {
    if (user === null && !isLogin) navigate(href(["login"], { next: text || undefined }), { replace: true });
  }, [user, isLogin]);
  if (isLogin) return html`<${Shell}><${LoginPage} query=${query} text=${text} /><//>`;
  if (problem) return html`<${Shell}><${ProblemView} problem=${problem} onRetry=${start} /><//>`;
  if (!user) return html`<${Shell}><p class="loading" role="status">Loading …</p><//>`;
  return html`<${Shell}><${View} path=${path} /><//>`;
}

function View({ path }) {
  const [name = "runs", namespace, run] = path;
  if (name === "runs" && !run) return html`<${RunsPage} />`;
  if (name === "runs") return html`<${Lazy} key=${`${namespace}/${run}`} load=${LAZY.run} />`;
  if (name in LAZY) return html`<${Lazy} key=${name} load=${LAZY[name]} />`;
  return html`<${Empty} title="There is no such page" level=${1}>
    <p>The address is not one of this page.</p>
    <a class="button" href=${href(["runs"])}>To the runs</a>
  <//>`;
}

/** Load the modules of a page while the server says who the user is. @param {string[]} path */
function preload([name = "runs", , run]) {
  const load = name === "runs" ? run && LAZY.run : LAZY[name];
  load?.().catch(() => {});
  // From the list the next page is most often that of a run.
  if (name === "runs" && !run) setTimeout(() => LAZY.run().catch(() => {}), 2000);
}

const app = /** @type {HTMLElement} */ (document.getElementById("app"));
app.replaceChildren();
// Only the first view of `#/` is named: the address always says what is shown.
if (hasIssuer && new URLSearchParams(window.location.search).has("state")) navigate(href(["login"]), { replace: true });
else if (!route.value.text) navigate(href(["runs"]), { replace: true });
preload(route.value.path);
render(html`<${App} />`, app);
