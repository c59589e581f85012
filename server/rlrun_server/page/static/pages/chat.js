/** Conversation with a deployed adapter, and the base model beside it. */
import { Empty, Loaded, ProblemView } from "../components/problem.js";
import { announce } from "../lib/announce.js";
import { chat } from "../lib/chat_stream.js";
import { pathOf, request } from "../lib/api.js";
import { plural } from "../lib/format.js";
import { html, useEffect, useRef, useState } from "../lib/html.js";
import { asProblem, useResource } from "../lib/resource.js";
import { href, setQuery, useRoute } from "../lib/router.js";
import { useTitle } from "../lib/title.js";

const MAX_TOKENS = 4096;

export function ChatPage() {
  useTitle("Chat");
  const { query } = useRoute();
  const adapters = useResource("deployed", async (signal) => {
    const { items } = await request("namespaces", { signal });
    const lists = await Promise.all(
      items.slice(0, 50).map(({ name }) => request(`${pathOf("namespaces", name)}/adapters`, { query: { phase: "Ready", limit: 500 }, signal })),
    );
    const found = lists.flatMap((list) => list.items).filter(({ deployed }) => deployed);
    return found.sort((a, b) => Number(b.deploymentState === "Deployed") - Number(a.deploymentState === "Deployed"));
  }, { interval: 15_000 });
  const wanted = `${query.get("ns") ?? ""}/${query.get("adapter") ?? ""}`;
  return html`
    <h1>Chat</h1>
    <${Loaded} resource=${adapters} what="deployed adapters">
      ${(found) => {
        if (!found.length) {
          return html`<div class="card"><${Empty} title="No adapter is deployed" level=${2}>
            <p>Deploy one of those that your runs have trained, then ask it here.</p>
            <a class="button" href=${href(["artifacts"])}>To the artifacts</a>
          <//></div>`;
        }
        const adapter = found.find(({ namespace, name }) => `${namespace}/${name}` === wanted) ?? found[0];
        return html`
          <div class="toolbar">
            <label class="inline-field grow-field"><span>Adapter</span>
              <select
                value=${`${adapter.namespace}/${adapter.name}`}
                onChange=${(event) => {
                  const [ns, name] = event.currentTarget.value.split("/");
                  setQuery({ ns, adapter: name });
                }}
              >
                ${found.map(({ namespace, name, step, run }) => html`<option key=${`${namespace}/${name}`} value=${`${namespace}/${name}`}>${namespace}/${name} (${run}, step ${step})</option>`)}
              </select>
            </label>
            <label class="inline-field">
              <input type="checkbox" checked=${query.has("base")} onChange=${(event) => setQuery({ base: event.currentTarget.checked ? 1 : "" })} />
              <span>Base model beside it</span>
            </label>
          </div>
          ${adapter.deploymentState !== "Deployed" && html`<div class="notice warning"><strong>The adapter is not ready yet</strong><p>${adapter.message || `State: ${adapter.deploymentState}. This page asks again by itself.`}</p></div>`}
          <${Conversation} key=${adapter.uid} adapter=${adapter} hasBase=${query.has("base")} />
        `;
      }}
    <//>
  `;
}

function Conversation({ adapter, hasBase }) {
  const own = `${adapter.namespace}/${adapter.name}`;
  const base = `${adapter.namespace}/${adapter.model}`;
  const [turns, setTurns] = useState(/** @type {any[]} */ ([]));
  const [text, setText] = useState("");
  const [system, setSystem] = useState("");
  const [temperature, setTemperature] = useState("0.7");
  // Without a limit the engine takes what is left of the model's context.
  const [limit, setLimit] = useState("");
  const [isBusy, setBusy] = useState(false);
  const stop = useRef(/** @type {AbortController | null} */ (null));
  const log = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => () => stop.current?.abort(), []);
  useEffect(() => {
    if (log.current) log.current.scrollTop = log.current.scrollHeight;
  }, [turns]);
  const change = (turn, model, changes) =>
    setTurns((old) => old.map((one, at) => (at === turn ? { ...one, answers: { ...one.answers, [model]: { ...one.answers[model], ...changes(one.answers[model]) } } } : one)));
  const ask = async (turn, model, messages, signal) => {
    const options = { model, messages, temperature: Number(temperature) || 0, maxTokens: Number(limit) ? Math.min(MAX_TOKENS, Number(limit)) : undefined };
    try {
      const end = await chat(options, (part) => change(turn, model, ({ text: before }) => ({ text: before + part })), signal);
      change(turn, model, () => ({ isDone: true, ...end }));
    } catch (error) {
      const problem = signal.aborted ? null : asProblem(error);
      change(turn, model, () => ({ isDone: true, problem, reason: signal.aborted ? "stopped" : "" }));
    }
  };
  const send = async (event) => {
    event?.preventDefault();
    if (!text.trim() || isBusy) return;
    const models = hasBase ? [own, base] : [own];
    const at = turns.length;
    const question = { role: "user", content: text };
    const historyOf = (model) => [
      ...(system.trim() ? [{ role: "system", content: system }] : []),
      ...turns.flatMap((turn) => [turn.question, ...(turn.answers[model]?.text ? [{ role: "assistant", content: turn.answers[model].text }] : [])]),
      question,
    ];
    const histories = models.map(historyOf);
    setTurns([...turns, { question, answers: Object.fromEntries(models.map((model) => [model, { text: "" }])) }]);
    setText("");
    setBusy(true);
    const ended = new AbortController();
    stop.current = ended;
    await Promise.all(models.map((model, index) => ask(at, model, histories[index], ended.signal)));
    setBusy(false);
    announce("The answer is complete");
  };
  return html`
    <div class="card chat" ref=${log} tabindex="0" role="log" aria-label="Conversation">
      ${turns.length === 0 && html`<${Empty} title="Ask the adapter" level=${2}><p>It answers as it was trained: give it a prompt like those of its environment.</p><//>`}
      ${turns.map(
        ({ question, answers }, at) =>
          html`<div key=${at} class="turn">
            <div class="message user"><div class="role">you</div><pre>${question.content}</pre></div>
            <div class=${`answers ${Object.keys(answers).length > 1 ? "two" : ""}`}>
              ${Object.entries(answers).map(([model, answer]) => html`<${Answer} key=${model} name=${model === own ? adapter.name : `base model ${adapter.model}`} answer=${answer} />`)}
            </div>
          </div>`,
      )}
    </div>
    <form class="card pad stack" onSubmit=${send}>
      <label class="field">Message
        <textarea
          rows="3" value=${text} maxlength="100000" onInput=${(event) => setText(event.currentTarget.value)}
          onKeyDown=${(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && send(event)}
        />
      </label>
      <div class="row between">
        <div class="row">
          <label class="inline-field"><span>Temperature</span><input type="number" class="bound" min="0" max="2" step="0.1" value=${temperature} onInput=${(event) => setTemperature(event.currentTarget.value)} /></label>
          <label class="inline-field"><span>Tokens at most</span><input type="number" class="bound" min="1" max=${MAX_TOKENS} value=${limit} onInput=${(event) => setLimit(event.currentTarget.value)} /></label>
        </div>
        <div class="row">
          <button type="button" disabled=${!turns.length || isBusy} onClick=${() => setTurns([])}>New conversation</button>
          ${isBusy
            ? html`<button type="button" onClick=${() => stop.current?.abort()}>Stop</button>`
            : html`<button class="primary" disabled=${!text.trim()} title="Ctrl Enter">Send</button>`}
        </div>
      </div>
      <details>
        <summary>System message</summary>
        <textarea rows="2" aria-label="System message" value=${system} onInput=${(event) => setSystem(event.currentTarget.value)} />
      </details>
    </form>
  `;
}

function Answer({ name, answer }) {
  return html`<div class="message assistant">
    <div class="role">${name}</div>
    ${answer.text ? html`<pre>${answer.text}</pre>` : !answer.isDone && html`<span class="muted">…</span>`}
    ${answer.problem && html`<${ProblemView} problem=${answer.problem} />`}
    ${answer.isDone && !answer.problem && html`<div class="muted sub">${[answer.tokens !== null && answer.tokens !== undefined ? plural(answer.tokens, "token") : "", answer.reason === "length" ? "cut off at the limit" : answer.reason].filter(Boolean).join(", ")}</div>`}
  </div>`;
}
