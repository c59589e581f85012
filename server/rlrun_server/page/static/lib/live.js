/** Live changes of a run: one stream of events per page, or polling if streams do not work. */
import { announce } from "./announce.js";
import { runPath, urlOf } from "./api.js";
import { useEffect, useRef, useState } from "./html.js";
import { session } from "./session.js";

const POLL_MS = 5000;
const MAX_FAILURES = 3;
const MAX_PAUSE_MS = 30_000;
/** Time after which a stream is tried again while the page polls. */
const RETRY_MS = 120_000;
/** Ends of a stream after which another one would end too. */
const FINAL = ["deleted"];

/**
 * @typedef {"off" | "live" | "polling" | "connecting"} LiveState
 * @typedef {Record<string, (data: any) => void>} LiveHandlers by topic, and `poll` for each interval without a stream
 */

/**
 * Follow a run. Handlers are those of the newest rendering.
 * @param {{namespace: string, run: string, topics: string[], query?: Record<string, unknown>, isOn: boolean}} wanted
 * @param {LiveHandlers} handlers
 * @returns {LiveState}
 */
export function useLive({ namespace, run, topics, query = {}, isOn }, handlers) {
  const newest = useRef(handlers);
  newest.current = handlers;
  const [state, setState] = useState(/** @type {LiveState} */ ("off"));
  const key = isOn ? JSON.stringify([namespace, run, topics, query]) : null;
  useEffect(() => {
    if (key === null) {
      setState("off");
      return undefined;
    }
    return follow({ namespace, run, topics, query }, newest, setState);
  }, [key]);
  return state;
}

function follow({ namespace, run, topics, query }, newest, setState) {
  /** @type {EventSource | null} */
  let source = null;
  let failures = 0;
  let timer = 0;
  let lastId = "";
  let isEnded = false;
  const poll = () => {
    if (isEnded) return;
    if (!document.hidden) newest.current.poll?.(null);
    timer = setTimeout(poll, POLL_MS);
  };
  const stopPolling = () => clearTimeout(timer);
  const fail = () => {
    source?.close();
    failures += 1;
    stopPolling();
    if (isEnded) return;
    if (failures >= MAX_FAILURES) {
      setState("polling");
      if (failures === MAX_FAILURES) announce("Live updates are interrupted. The page asks every five seconds.");
      poll();
      setTimeout(() => !isEnded && open(), RETRY_MS);
    } else {
      setState("connecting");
      timer = setTimeout(open, Math.min(MAX_PAUSE_MS, 500 * 2 ** failures) * (0.75 + Math.random() / 2));
    }
  };
  const open = () => {
    if (isEnded) return;
    const url = urlOf(`${runPath(namespace, run)}/stream`, { topics: topics.join(","), ...query, last_event_id: lastId });
    source = new EventSource(url);
    source.onopen = () => {
      stopPolling();
      // What happened before the stream is read once.
      if (failures) newest.current.poll?.(null);
      failures = 0;
      setState("live");
    };
    source.onerror = fail;
    for (const topic of topics) source.addEventListener(topic, (event) => receive(topic, event));
    source.addEventListener("bye", (event) => {
      const { reason } = parsed(event) ?? {};
      if (FINAL.includes(reason)) {
        source?.close();
        isEnded = true;
        setState("off");
        newest.current.bye?.(reason);
      } else if (reason === "unauthorized") {
        isEnded = true;
        source?.close();
        newest.current.poll?.(null);
      } else fail();
    });
  };
  const receive = (topic, event) => {
    if (event.lastEventId) lastId = event.lastEventId;
    const data = parsed(event);
    if (data !== null) newest.current[topic]?.(data);
  };
  open();
  const unsubscribe = session.subscribe((user) => {
    if (user === null) source?.close();
  });
  return () => {
    isEnded = true;
    unsubscribe();
    stopPolling();
    source?.close();
  };
}

function parsed(event) {
  try {
    return JSON.parse(event.data);
  } catch {
    return null;
  }
}
