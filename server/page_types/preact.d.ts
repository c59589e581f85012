/** Types of what the page uses of Preact. */
export type VNode = object;
export const Fragment: unknown;
export function h(type: any, props?: any, ...children: any[]): VNode;
export function render(node: VNode | null, parent: Element): void;
export function createContext<T>(value: T): { Provider: any };
