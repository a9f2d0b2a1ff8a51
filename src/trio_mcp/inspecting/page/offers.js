// The server's tools, resources, prompts etc. (items): a list of each kind, and the selected item with its requests.

import { ASKING } from "./asking.js";
import { ask, breakable, el, folded, shortName, visible } from "./elements.js";
import { server } from "./server.js";
import { draw, hint, list, mark, matches, MOST_ROWS, say, scrollToDetail, show } from "./view.js";

const lists = {}; // by kind: {items, more, problem}, {error}, or {loading}
let chosen = null;

/** The tab of a kind of items. */
export const offersTab = (kind, title) => ({
  title,
  count: () => countOf(lists[kind]),
  open() {
    chosen = null;
    show(hint("Select an item."));
    if (!lists[kind]) load(kind);
  },
  draw: () => drawOffers(kind, title),
  refresh: () => load(kind),
});

/** Discard the list of a kind, or all lists. A list is loaded again when its tab is opened. */
export function forgetLists(...kinds) {
  (kinds.length ? kinds : Object.keys(lists)).forEach((kind) => delete lists[kind]);
}

const countOf = (known) => (known?.items?.length ? `${known.items.length}${known.more ? "+" : ""}` : 0);

async function load(kind) {
  lists[kind] = { loading: true };
  draw();
  try {
    lists[kind] = await ask({ do: "list", kind });
  } catch (error) {
    lists[kind] = { error: error.message };
  }
  draw();
}

function drawOffers(kind, title) {
  const known = lists[kind] ?? { loading: true };
  const all = known.items ?? [];
  const fitting = all.filter((one) => matches(one.name, one.title, one.uri, one.uriTemplate, one.description));
  const shown = fitting.slice(0, MOST_ROWS);
  const problem = known.problem ? visible(`Problem in the list: ${known.problem}.`) : "";
  say([problem, noteOn(known, fitting.length, shown.length, title)].filter(Boolean).join(" "));
  list.replaceChildren(...shown.map((one) => {
    const where = one.uri ?? one.uriTemplate;
    const row = el("button", { type: "button", className: "offer", onclick: () => choose(kind, one, row) },
      el("span", { className: "name" }, ...breakable(shortName(one.name))),
      el("span", { className: "about" }, shortName(where ?? one.description ?? one.title ?? "", 160)));
    row.dataset.name = one.name;
    if (chosen === one) mark(row);
    return row;
  }));
}

function noteOn(known, fitting, shown, title) {
  if (known.error) return visible(known.error);
  if (known.loading) return server.state === "connected" ? "Loading…" : "";
  if (!fitting) return known.items.length ? "Nothing fits the filter." : `The server has no ${title.toLowerCase()}.`;
  if (fitting === shown && !known.more) return "";
  return `The first ${shown} of ${fitting}${known.more ? " or more" : ""}: narrow the filter.`;
}

function choose(kind, one, row) {
  chosen = one;
  mark(row);
  const title = one.title ?? one.annotations?.title;
  const about = typeof one.description === "string" ? visible(one.description.slice(0, 20_000)) : null;
  show(
    el("h2", {}, shortName(one.name, 300)),
    title ? el("p", { className: "faint" }, shortName(title, 300)) : null,
    about === null ? null : el("p", { className: "message" }, about),
    ...ASKING[kind](one),
    folded("Raw definition", one),
  );
  scrollToDetail();
}
