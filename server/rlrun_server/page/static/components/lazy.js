/** Component whose module is loaded when it is shown. */
import { html, useEffect, useState } from "../lib/html.js";
import { asProblem } from "../lib/resource.js";
import { ProblemView } from "./problem.js";

// Connections are lost when a network changes or a tunnel ends. The browser does not load a module again by itself.
const PAUSES_MS = [500, 2000, 5000];

/** @param {() => Promise<any>} load */
async function loaded(load) {
  for (const pause of PAUSES_MS) {
    try {
      return await load();
    } catch {
      await new Promise((resolve) => setTimeout(resolve, pause));
    }
  }
  return load();
}

/** @param {{load: () => Promise<any>, props?: object}} props load returns the component; another `key` for another one */
export function Lazy({ load, props = {} }) {
  /** @type {{Component: any, problem: import("../lib/api.js").Problem | null}} */
  const empty = { Component: null, problem: null };
  const [state, setState] = useState(empty);
  const start = () => {
    setState(empty);
    loaded(load).then(
      (Component) => setState({ Component, problem: null }),
      (error) => setState({ Component: null, problem: asProblem(error) }),
    );
  };
  useEffect(start, []);
  if (state.problem) return html`<${ProblemView} problem=${state.problem} onRetry=${start} />`;
  return state.Component ? html`<${state.Component} ...${props} />` : html`<p class="loading" role="status">Loading …</p>`;
}
