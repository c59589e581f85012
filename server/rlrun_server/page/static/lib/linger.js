/** States that last a little longer than their cause. */
import { useEffect, useRef, useState } from "./html.js";

/**
 * Return true while `isOn`, and for `ms` after it was.
 * @param {boolean} isOn @param {number} ms @param {() => void} onEnd called when that time is over
 */
export function useLinger(isOn, ms, onEnd) {
  const [isLeft, setLeft] = useState(false);
  const newest = useRef(onEnd);
  newest.current = onEnd;
  useEffect(() => {
    if (isOn) {
      setLeft(true);
      return undefined;
    }
    if (!isLeft) return undefined;
    const timer = setTimeout(() => {
      newest.current();
      setLeft(false);
    }, ms);
    return () => clearTimeout(timer);
  }, [isOn, isLeft, ms]);
  return isOn || isLeft;
}
