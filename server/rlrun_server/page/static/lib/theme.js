/** Light and dark: as the system says, until the user chooses. */
import { Store } from "./store.js";

const KEY = "rlrun-theme";
const system = window.matchMedia("(prefers-color-scheme: dark)");

/** "light", "dark", or "auto" for the system's. */
export const choice = new Store(stored());
/** Theme that is shown. */
export const theme = new Store(resolved());

export function chooseTheme(value) {
  choice.set(value);
  try {
    if (value === "auto") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, value);
  } catch {
    // Without storage the choice lasts until the page is closed.
  }
  apply();
}

function apply() {
  if (choice.value === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = choice.value;
  theme.set(resolved());
}

function resolved() {
  return choice.value === "auto" ? (system.matches ? "dark" : "light") : choice.value;
}

function stored() {
  try {
    const found = localStorage.getItem(KEY);
    return found === "light" || found === "dark" ? found : "auto";
  } catch {
    return "auto";
  }
}

system.addEventListener("change", apply);
apply();
