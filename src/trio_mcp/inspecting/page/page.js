// The page: its tabs, and the events of the inspector's own server, each passed to its module.

import { el } from "./elements.js";
import { levelForgotten, logs, logsTab } from "./logs.js";
import { messages, messagesTab } from "./messages.js";
import { forgetLists, offersTab } from "./offers.js";
import { noQuestions, question, questionOver } from "./questions.js";
import { onlyRuns, run, runForgotten } from "./runs.js";
import { drawServer, programEnded, server, serverChanged } from "./server.js";
import { tasksTab } from "./tasks.js";
import { at, draw, emptyPanes, paintedBy } from "./view.js";

// Tabs

/** The tabs by name: the title; `count`, shown beside it; `open`, which shows the initial state; `draw`, which draws
    the list; `refresh`, which loads it again. */
const TABS = {
  tools: offersTab("tools", "Tools"),
  resources: offersTab("resources", "Resources"),
  templates: offersTab("templates", "Templates"),
  prompts: offersTab("prompts", "Prompts"),
  skills: offersTab("skills", "Skills"),
  tasks: tasksTab,
  logs: logsTab,
  frames: messagesTab,
};
const OF_EVERY_SERVER = ["logs", "frames"];

let tab = "tools";
document.body.dataset.tab = tab;

function paint() {
  const names = namesNow();
  if (server.has && !names.includes(tab)) return choose(names[0]);
  at("tabs").replaceChildren(...names.map((name) => {
    const count = TABS[name].count();
    const made = el(
      "button",
      { type: "button", role: "tab", "aria-selected": String(name === tab), onclick: () => choose(name) },
      TABS[name].title,
      count ? el("span", { className: "count" }, ` ${count}`) : null,
    );
    made.dataset.tab = name;
    return made;
  }));
  TABS[tab].draw();
}

const namesNow = () =>
  Object.keys(TABS).filter((name) => OF_EVERY_SERVER.includes(name) || (server.has ?? []).includes(name));

function choose(name) {
  tab = name;
  document.body.dataset.tab = name;
  emptyPanes();
  TABS[name].open();
  draw();
}

paintedBy(paint);
at("filter").addEventListener("input", draw);
at("refresh").addEventListener("click", () => TABS[tab].refresh());

// Events

let isFirst = true;

function connectionChanged(told) {
  const isNew = serverChanged(told);
  if (isNew) {
    forgetLists();
    levelForgotten();
    if (isFirst) choose(server.has[0]); // the first kind that the server declares
    else TABS[tab].refresh(); // values in open forms stay
    isFirst = false;
  }
  draw();
}

function listChanged(kind) {
  const kinds = kind === "resources" ? ["resources", "templates"] : [kind];
  forgetLists(...kinds.filter((each) => each !== tab));
  if (kinds.includes(tab)) TABS[tab].refresh();
}

const LONGEST_BEGINNING = 1000; // milliseconds
let told = null; // ids of the requests in the initial events
let beginning; // timer for the end of the initial events

const EVENTS = {
  everything() {
    noQuestions();
    logs.forget();
    messages.forget();
    told = new Set();
    clearTimeout(beginning); // of initial events that were interrupted
    beginning = setTimeout(() => { onlyRuns(told); told = null; }, LONGEST_BEGINNING);
  },
  server: connectionChanged,
  run(one) {
    told?.add(one.id);
    run(one);
  },
  "run.forgotten": (one) => runForgotten(one.id),
  question,
  "question.over": (one) => questionOver(one.id),
  log: logs.add,
  frame: messages.add,
  changed: ({ list: kind }) => listChanged(kind),
};

const events = new EventSource("events");
events.onmessage = ({ data }) => {
  const thing = JSON.parse(data);
  EVENTS[thing.what]?.(thing);
};
events.onerror = programEnded;
events.onopen = drawServer;
