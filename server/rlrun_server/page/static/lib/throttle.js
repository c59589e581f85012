/** Calls that come too often. */

/**
 * Return a function that calls `act` at most once per `ms`, and once more after the last call.
 * @param {() => void} act
 * @param {number} ms
 */
export function throttled(act, ms) {
  let last = 0;
  let timer = 0;
  return () => {
    if (timer) return;
    const pause = Math.max(0, last + ms - Date.now());
    timer = setTimeout(() => {
      timer = 0;
      last = Date.now();
      act();
    }, pause);
  };
}
