/** Requests that wait for one another, so that a long list does not use up the user's rate. */

/**
 * Return a function that runs tasks, at most `limit` at once. A task that is aborted before its turn is skipped.
 * @param {number} limit
 */
export function taskQueue(limit) {
  let running = 0;
  /** @type {(() => void)[]} */
  const waiting = [];
  const next = () => {
    if (running < limit) waiting.shift()?.();
  };
  /**
   * @template T
   * @param {() => Promise<T>} task
   * @param {AbortSignal} signal
   * @returns {Promise<T>}
   */
  return (task, signal) =>
    new Promise((resolve, reject) => {
      waiting.push(() => {
        if (signal.aborted) {
          reject(new DOMException("aborted", "AbortError"));
          next();
          return;
        }
        running += 1;
        task()
          .then(resolve, reject)
          .finally(() => {
            running -= 1;
            next();
          });
      });
      next();
    });
}
