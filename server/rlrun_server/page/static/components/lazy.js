/** Component whose module is loaded when it is shown. */
import { html, useEffect, useState } from "../lib/html.js";
import { asProblem } from "../lib/resource.js";
import { ProblemView } from "./problem.js";

/** @param {{load: () => Promise<any>, props?: object}} props load returns the component; another `key` for another one */
export function Lazy({ load, props = {} }) {
  const [state, setState] = useState({ Component: null, problem: null });
  const start = () => {
    setState({ Component: null, problem: null });
    load().then(
      (Component) => setState({ Component, problem: null }),
      (error) => setState({ Component: null, problem: asProblem(error) }),
    );
  };
  useEffect(start, []);
  if (state.problem) return html`<${ProblemView} problem=${state.problem} onRetry=${start} />`;
  return state.Component ? html`<${state.Component} ...${props} />` : html`<p class="loading" role="status">Loading …</p>`;
}
