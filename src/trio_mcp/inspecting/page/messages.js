// Messages: those of the connection, each with its details, and all requests on one timeline.

import { ask, breakable, button, clock, el, json, shortName, size, visible } from "./elements.js";
import { Kept } from "./kept.js";
import { timelineImage } from "./runs.js";
import { draw, hint, list, mark, matches, MOST_ROWS, say, show, showLater } from "./view.js";

const WAYS = { out: "sent to the server", in: "received from the server" };
const ARROWS = { out: "→", in: "←" };

export const messages = new Kept();
let chosen = null; // number of a message

export const messagesTab = {
  title: "Messages",
  count: () => messages.all.length,
  open: showPicture,
  draw: drawMessages,
  refresh: draw,
};

function drawMessages() {
  const shown = messages.latest((frame) => matches(frame.words, frame.kind, frame.id), MOST_ROWS);
  say(shown.length ? "" : "No messages yet.");
  list.replaceChildren(...shown.map((frame) => {
    const words = `${summaryOf(frame)}${frame.id === null ? "" : ` #${frame.id}`}`;
    const row = el("button", { type: "button", className: `frame ${frame.kind}`, onclick: () => choose(frame, row) },
      el("span", { className: "faint" }, clock(frame.at)),
      el("span", { className: "way" }, ARROWS[frame.dir] ?? "·"),
      el("span", { className: "words" }, ...breakable(shortName(words, 80))),
      el("span", { className: "faint" }, frame.dir ? size(frame.bytes) : ""));
    if (chosen === frame.n) mark(row);
    return row;
  }));
}

/** The summary of a message: its method; for a response, the method of its request. */
function summaryOf({ kind, words }) {
  if (kind === "event") return `local: ${words}`;
  return kind === "result" || kind === "error" ? `${kind} ${words}`.trim() : words || kind;
}

function showPicture() {
  chosen = null;
  draw();
  show(
    el("h2", {}, "Timeline"),
    hint("Secrets are masked. Select a message to see it."),
    timelineImage("", () => messages.all.at(-1)),
  );
}

function choose(frame, row) {
  chosen = frame.n;
  mark(row);
  showLater(about(frame));
}

async function about(frame) {
  const way = WAYS[frame.dir] ?? "a local event, which isn't a message";
  const head = [
    button("Timeline", showPicture, "plain"),
    el("h2", {}, shortName(summaryOf(frame))),
    hint(`${frame.kind}, ${way} at ${clock(frame.at)}`),
  ];
  try {
    return [...head, json(await ask({ do: "frame", frame: frame.n }))];
  } catch (error) {
    return [...head, el("p", { className: "bad" }, visible(error.message))];
  }
}
