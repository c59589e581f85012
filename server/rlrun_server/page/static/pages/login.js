/** Login at the OIDC issuer, with a token, an API key, or the code of `rlrun open`. */
import { ProblemView } from "../components/problem.js";
import { html, useEffect, useState } from "../lib/html.js";
import { useAction } from "../lib/resource.js";
import { href, navigate } from "../lib/router.js";
import { goToIssuer, hasIssuer, logIn, logOut, takeIssuerAnswer } from "../lib/session.js";
import { announce } from "../lib/announce.js";
import { useTitle } from "../lib/title.js";

/** Key of the view after the login, while the browser is at the issuer. */
const NEXT = "rlrun-next";

/** @param {{query: URLSearchParams, text: string}} props */
export function LoginPage({ query, text }) {
  useTitle("Log in");
  const [token, setToken] = useState("");
  const login = useAction(async (/** @type {import("../lib/session.js").LoginBody} */ credential) => {
    await logIn(credential);
    setToken("");
    navigate(safeNext(query.get("next")));
    announce("Logged in");
  });
  const leaveForIssuer = useAction(async () => {
    sessionStorage.setItem(NEXT, query.get("next") || "");
    await goToIssuer();
  });
  const comeBack = useAction(async () => {
    const oidc = takeIssuerAnswer();
    if (!oidc) return;
    const next = sessionStorage.getItem(NEXT);
    navigate(href(["login"], { next: next || undefined }), { replace: true });
    await logIn({ oidc });
    navigate(safeNext(next));
    announce("Logged in");
  });
  const leave = useAction(async () => {
    await logOut();
    announce("Logged out", true);
    navigate(href(["login"]), { replace: true });
  });
  useEffect(() => {
    if (text.startsWith("login=")) {
      const code = new URLSearchParams(text).get("login") || "";
      // The code is used once, and does not stay in the history.
      navigate(href(["login"]), { replace: true });
      login.run({ code });
    } else if (query.get("leave")) leave.run();
    else comeBack.run();
  }, []);
  const submit = (event) => {
    event.preventDefault();
    if (token.trim()) login.run({ token: token.trim() });
  };
  const problem = login.problem || leave.problem || leaveForIssuer.problem || comeBack.problem;
  if (query.get("leave") && !leave.problem) return html`<p class="loading" role="status">Logging out …</p>`;
  return html`<div class="login">
    <form class="card pad stack" onSubmit=${submit}>
      <h1>Log in</h1>
      <p class="muted">Your rights in Kubernetes count here too. The token stays in an encrypted cookie for at most 8 hours.</p>
      ${problem && html`<${ProblemView} problem=${problem} />`}
      ${hasIssuer &&
      html`<button type="button" class="primary" disabled=${leaveForIssuer.isBusy || comeBack.isBusy} onClick=${() => leaveForIssuer.run()}>
        ${comeBack.isBusy ? "Logging in …" : "Log in with single sign-on"}
      </button>`}
      <label class="field">
        Kubernetes token or API key
        <input
          type="password" name="token" autocomplete="off" spellcheck=${false} required value=${token}
          onInput=${(event) => setToken(event.currentTarget.value)}
        />
      </label>
      <button class="primary" disabled=${login.isBusy}>${login.isBusy ? "Logging in …" : "Log in"}</button>
      <details>
        <summary>Where do I get one?</summary>
        <div class="stack prose">
          <p>With the command line, without a token to copy:</p>
          <pre class="code">rlrun open</pre>
          <p>A token of your namespace for an hour:</p>
          <pre class="code">kubectl create token rlrun-user -n NAMESPACE</pre>
          <p>An API key, good for weeks. It may what <code>rlrun-user</code> of its namespace may, unless keys only read here:</p>
          <pre class="code">rlrun key create -n NAMESPACE</pre>
        </div>
      </details>
    </form>
  </div>`;
}

/** Return the view after the login: only one of this page, never another address. */
function safeNext(next) {
  return next && next.startsWith("/") && !next.startsWith("/login") ? `#${next}` : href(["runs"]);
}
