/** Completions of the server's OpenAI-compatible interface, as they come. */
import { Problem, urlOf } from "./api.js";

/**
 * @typedef {object} ChatRequest
 * @property {string} model
 * @property {{role: string, content: string}[]} messages
 * @property {number} [temperature]
 * @property {number} [maxTokens]
 */

/**
 * Send a conversation, and call `onText` with each part of the answer. Raises Problem.
 * @param {ChatRequest} wanted
 * @param {(text: string) => void} onText
 * @param {AbortSignal} signal
 * @returns {Promise<{reason: string, tokens: number | null}>}
 */
export async function chat({ model, messages, temperature, maxTokens }, onText, signal) {
  const answer = await fetch(urlOf("/v1/chat/completions"), {
    method: "POST",
    credentials: "same-origin",
    headers: { "Content-Type": "application/json", "X-Rlrun": "1" },
    body: JSON.stringify({ model, messages, stream: true, temperature, max_tokens: maxTokens, stream_options: { include_usage: true } }),
    signal,
  }).catch((error) => {
    if (signal.aborted) throw error;
    throw new Problem({ status: 0, title: "The server does not answer", detail: "Send the message again." });
  });
  if (!answer.ok || !answer.body) {
    const found = await answer.json().catch(() => ({}));
    throw problemOf(answer.status, found.error ?? found);
  }
  let reason = "";
  let tokens = null;
  for await (const data of eventsOf(answer.body)) {
    if (data === "[DONE]") break;
    const event = JSON.parse(data);
    if (event.error) throw problemOf(502, event.error);
    const choice = event.choices?.[0];
    if (choice?.delta?.content) onText(choice.delta.content);
    reason = choice?.finish_reason ?? reason;
    tokens = event.usage?.completion_tokens ?? tokens;
  }
  return { reason, tokens };
}

/** Models that the caller may ask. @param {AbortSignal} signal */
export async function readModels(signal) {
  const answer = await fetch(urlOf("/v1/models"), { credentials: "same-origin", signal });
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw problemOf(answer.status, found.error ?? found);
  return /** @type {{id: string}[]} */ (found.data ?? []);
}

function problemOf(status, error) {
  return new Problem({
    status,
    title: status === 503 ? "The adapter is not ready to answer" : "The request was refused",
    detail: String(error.message ?? error.detail ?? "No answer. Send the message again."),
    reason: String(error.code ?? ""),
  });
}

/** Data of server-sent events. */
async function* eventsOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      rest += value;
      const lines = rest.split(/\r?\n/);
      rest = lines.pop() ?? "";
      for (const line of lines) if (line.startsWith("data:")) yield line.slice("data:".length).trim();
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
