// The panes of each tab: a list with a filter and a note, and the details of the selected item.

import { el, visible } from "./elements.js";

export const at = (id) => document.getElementById(id);
export const list = at("list");
const [detail, filter, note] = ["detail", "filter", "note"].map(at);
export const MOST_ROWS = 400;

let paint;
let isSoon = false;

/** Set the function that draws the tabs and the list of the selected tab. */
export function paintedBy(all) {
  paint = all;
}

/** Draw soon, once for many events. */
export function draw() {
  if (isSoon) return;
  isSoon = true;
  requestAnimationFrame(() => {
    isSoon = false;
    paint();
  });
}

/** Empty the panes for another tab, so that items of the last tab can't be clicked before the next drawing. */
export function emptyPanes() {
  filter.value = "";
  list.replaceChildren();
  show();
}

/** Show a note above the list, or none. */
export function say(words) {
  note.textContent = words;
  note.hidden = !words;
}

/** Whether one of the texts contains the filter. */
export function matches(...texts) {
  const words = filter.value.trim().toLowerCase();
  return !words || texts.some((text) => String(text ?? "").toLowerCase().includes(words));
}

/** Mark a row of the list as selected, and no other. */
export function mark(row) {
  list.querySelectorAll("[aria-current]").forEach((other) => other.removeAttribute("aria-current"));
  row.setAttribute("aria-current", "true");
}

let latest = 0; // number of the latest details that are shown or loading

/** Show new details in place of the last ones. */
export function show(...children) {
  latest += 1;
  detail.replaceChildren(...children.filter((child) => child !== null));
}

/** Show the details that `children` resolves to, unless others were shown by then. */
export async function showLater(children) {
  const mine = (latest += 1);
  const found = await children;
  if (mine === latest) show(...found);
}

/** Scroll to the details if they are below the list. */
export function scrollToDetail() {
  if (matchMedia("(max-width: 800px)").matches) detail.scrollIntoView({ block: "start" });
}

export const hint = (words) => el("p", { className: "faint" }, words);

/** A paragraph for errors: its element, and `tell`, which shows a message, or none. */
export function complaint() {
  const element = el("p", { className: "bad", role: "alert", hidden: true });
  const tell = (words) => {
    element.textContent = visible(words);
    element.hidden = !words;
  };
  return { element, tell };
}
