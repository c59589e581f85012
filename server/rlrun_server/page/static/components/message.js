/** Message of a conversation, as text. */
import { html, useState } from "../lib/html.js";
import { callsOf, textOf } from "../lib/sample_data.js";

const LONG = 6000;

/** @param {{message: any}} props */
export function Message({ message }) {
  const role = typeof message?.role === "string" ? message.role : "message";
  const reasoning = message?.reasoning_content ?? message?.reasoning;
  const text = textOf(message);
  const calls = callsOf(message);
  const style = ["user", "assistant", "system", "tool"].includes(role) ? role : "";
  return html`<div class=${`message ${style}`}>
    <div class="role">${role}${typeof message?.name === "string" ? ` ${message.name}` : ""}</div>
    ${typeof reasoning === "string" && reasoning && html`<details><summary>Reasoning</summary><${LongText} text=${reasoning} /></details>`}
    ${text && html`<${LongText} text=${text} />`}
    ${calls.map(({ name, args }, at) => html`<div key=${at} class="call"><span class="role">calls ${name}</span><${LongText} text=${args} /></div>`)}
    ${!text && !calls.length && html`<span class="muted">empty</span>`}
  </div>`;
}

/** Text whose end is hidden until it is wanted. @param {{text: string}} props */
export function LongText({ text }) {
  const [isWhole, setWhole] = useState(text.length <= LONG * 1.2);
  return html`<pre>${isWhole ? text : text.slice(0, LONG)}</pre>
    ${!isWhole && html`<button class="small" onClick=${() => setWhole(true)}>Show ${(text.length - LONG).toLocaleString("en-US")} more characters</button>`}`;
}
