// Logs: the server's log messages, and the lowest level that it should send.

import { ask, clock, el, shortName, visible } from "./elements.js";
import { Kept } from "./kept.js";
import { server } from "./server.js";
import { complaint, draw, hint, list, matches, MOST_ROWS, say, show } from "./view.js";

const LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];
const FIRST_LEVEL = "info"; // requested at the beginning of each connection

export const logs = new Kept();
let wanted = FIRST_LEVEL;

export const logsTab = {
  title: "Logs",
  count: () => logs.all.length,
  open: showLevels,
  draw: drawLogs,
  refresh() {
    showLevels();
    draw();
  },
};

/** Handle a new connection, on which only the first level was requested so far. */
export function levelForgotten() {
  wanted = FIRST_LEVEL;
}

function drawLogs() {
  const shown = logs.latest((line) => matches(line.text, line.level, line.logger), MOST_ROWS);
  say(shown.length ? "" : "Nothing was logged yet.");
  list.replaceChildren(...shown.map((line) =>
    el("div", { className: `line ${LEVELS.includes(line.level) ? line.level : "other"}` },
      el("span", { className: "faint" }, clock(line.at)),
      el("span", { className: "level" }, shortName(line.level, 20)),
      el("span", { className: "words" }, visible(line.logger ? `${line.logger}: ${line.text}` : line.text)))));
}

function showLevels() {
  const { element: wrong, tell } = complaint();
  const want = async () => {
    try {
      await ask({ do: "logLevel", level: control.value });
      wanted = control.value;
      tell("");
    } catch (error) {
      tell(error.message);
    }
  };
  const options = LEVELS.map((level) => el("option", { value: level }, level));
  const control = el("select", { "aria-label": "Lowest level", onchange: want }, ...options);
  control.value = wanted;
  show(
    el("h2", {}, "Logs"),
    server.logs
      ? el("label", { className: "row" }, el("span", { className: "label" }, "Lowest level to be sent"), control)
      : hint("The server declares no logs."),
    hint("Lines of the level stderr are what a command writes to its standard error."),
    wrong,
  );
}
