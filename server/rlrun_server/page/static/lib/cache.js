/** Answers that do not change: stored rollouts of a step. */

/**
 * Return a function that keeps the newest answers by key.
 * @param {number} size
 */
export function answerCache(size) {
  /** @type {Map<string, Promise<unknown>>} */
  const kept = new Map();
  /**
   * @template T
   * @param {string} key
   * @param {() => Promise<T>} load
   * @returns {Promise<T>}
   */
  return (key, load) => {
    const found = kept.get(key) ?? load();
    kept.delete(key);
    kept.set(key, found);
    if (kept.size > size) kept.delete(/** @type {string} */ (kept.keys().next().value));
    found.catch(() => kept.get(key) === found && kept.delete(key));
    return /** @type {Promise<T>} */ (found);
  };
}
