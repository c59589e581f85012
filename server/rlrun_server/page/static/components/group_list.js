/** Groups of a step. */
import { fixed } from "../lib/format.js";
import { html } from "../lib/html.js";

const WIDTH = 64;
const HEIGHT = 22;

/** @param {{groups: {info: any, items: any[]}[], current?: string, onChoose: (group: string) => void}} props */
export function GroupList({ groups, current, onChoose }) {
  const environments = new Set(groups.map(({ info }) => info.environment));
  return html`<ul class="plain groups">
    ${groups.map(({ info, items }) => {
      const failed = items.filter((item) => item.status === "errored").length;
      return html`<li key=${info.group}>
        <button
          id=${`group-${info.group}`} class="group" aria-current=${info.group === current ? "true" : undefined} onClick=${() => onChoose(info.group)}
        >
          <span class="mean">${info.mean === undefined || info.mean === null ? "–" : fixed(info.mean, 2)}</span>
          <${RewardBars} items=${items} />
          <span class="grow">
            <span class="preview">${items[0].text || "no answer"}</span>
            <span class="muted sub">${environments.size > 1 ? `${info.environment} · ` : ""}example ${info.example}${failed ? ` · ${failed} failed` : ""}${items.length < info.rollouts ? ` · ${items.length} of ${info.rollouts}` : ""}</span>
          </span>
        </button>
      </li>`;
    })}
  </ul>`;
}

/** One bar per rollout, higher for more reward; a dot for one without. */
export function RewardBars({ items }) {
  const rewards = items.slice(0, 32).map(({ reward }) => reward ?? null);
  const known = rewards.filter((reward) => reward !== null);
  const low = Math.min(0, ...known);
  const span = Math.max(1, ...known) - low;
  const room = WIDTH / rewards.length;
  return html`<svg width=${WIDTH} height=${HEIGHT} class="bars-of-group" role="img" aria-label=${`Rewards ${rewards.map((reward) => fixed(reward, 2)).join(", ")}`}>
    ${rewards.map((reward, at) => {
      const x = at * room;
      if (reward === null) return html`<circle key=${at} cx=${x + room / 2} cy=${HEIGHT - 3} r="2" class="none" />`;
      const height = 2 + ((reward - low) / span) * (HEIGHT - 3);
      return html`<rect key=${at} x=${x} y=${HEIGHT - height} width=${Math.max(1, Math.min(7, room - 1.5))} height=${height} rx="1" />`;
    })}
  </svg>`;
}
