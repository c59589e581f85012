/** Libraries that define a global variable instead of exports. */
declare global {
  interface Window {
    Diff: any;
    uPlot: any;
  }
}
export {};
