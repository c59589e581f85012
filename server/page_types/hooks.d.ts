/** Types of Preact's hooks that the page uses. */
type Cleanup = void | (() => void);
type Ref<T> = { current: T };
export function useState<T>(initial: T | (() => T)): [T, (next: T | ((before: T) => T)) => void];
export function useEffect(effect: () => Cleanup, inputs?: unknown[]): void;
export function useLayoutEffect(effect: () => Cleanup, inputs?: unknown[]): void;
export function useMemo<T>(make: () => T, inputs?: unknown[]): T;
export function useCallback<F extends (...args: any[]) => any>(call: F, inputs?: unknown[]): F;
export function useRef<T>(initial: T): Ref<T>;
export function useContext<T>(context: { Provider: any }): any;
export function useId(): string;
