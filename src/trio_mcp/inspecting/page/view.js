// The panes that each tab fills: a list with a filter and a note, and the detail of what was chosen there.

import { el, visible } from "./elements.js";

export const at = (id) => document.getElementById(id);
export const list = at("list");
const [detail, filter, note] = ["detail", "filter", "note"].map(at);
export const MOST_ROWS = 400;

let paint;
let isSoon = false;

/** Let `all` draw the tabs and the list of the chosen one. */
export function paintedBy(all) {
  paint = all;
}

/** Draw soon: many events are one drawing. */
export function draw() {
  if (isSoon) return;
  isSoon = true;
  requestAnimationFrame(() => {
    isSoon = false;
    paint();
  });
}

/** Empty the panes for another tab: what the last one has is not to be clicked before the next drawing. */
export function emptyPanes() {
  filter.value = "";
  list.replaceChildren();
  show();
}

/** Say something above the list, or nothing. */
export function say(words) {
  note.textContent = words;
  note.hidden = !words;
}

/** Whether one of the texts has what is in the filter. */
export function matches(...texts) {
  const words = filter.value.trim().toLowerCase();
  return !words || texts.some((text) => String(text ?? "").toLowerCase().includes(words));
}

/** Mark a row of the list as the chosen one, in place of another. */
export function mark(row) {
  list.querySelectorAll("[aria-current]").forEach((other) => other.removeAttribute("aria-current"));
  row.setAttribute("aria-current", "true");
}

let latest = 0; // the number of the last thing that was shown, or is to be shown

/** Show something in place of the last detail. */
export function show(...children) {
  latest += 1;
  detail.replaceChildren(...children.filter((child) => child !== null));
}

/** Show what `children` gives, once it is there, unless something else has been shown by then. */
export async function showLater(children) {
  const mine = (latest += 1);
  const found = await children;
  if (mine === latest) show(...found);
}

/** Bring the detail into view where it is below the list. */
export function scrollToDetail() {
  if (matchMedia("(max-width: 800px)").matches) detail.scrollIntoView({ block: "start" });
}

export const hint = (words) => el("p", { className: "faint" }, words);

/** A paragraph for what goes wrong: its element, and `tell`, which takes words for it, or none. */
export function complaint() {
  const element = el("p", { className: "bad", role: "alert", hidden: true });
  const tell = (words) => {
    element.textContent = visible(words);
    element.hidden = !words;
  };
  return { element, tell };
}
