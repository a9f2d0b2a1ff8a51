// Tasks: those started in the page, and those that the server lists.

import { ask, button, el, shortName, visible } from "./elements.js";
import { start } from "./runs.js";
import { complaint, draw, hint, list, mark, matches, say, show, showLater } from "./view.js";

const MOST_SEEN = 50;
let known = null; // {tasks, error}, once loaded
let chosen = null; // id of a task

export const tasksTab = {
  title: "Tasks",
  count: () => 0,
  open() {
    chosen = null;
    show(hint("Select an item."));
    load();
  },
  draw: drawTasks,
  refresh: load,
};

async function load() {
  try {
    const { tasks, seen } = await ask({ do: "tasks" });
    const listed = new Set(tasks.map((task) => task.id));
    for (const id of seen.filter((one) => !listed.has(one)).slice(0, MOST_SEEN)) tasks.push(await state(id));
    known = { tasks, error: null };
  } catch (error) {
    known = { tasks: [], error: error.message };
  }
  draw();
}

const state = (id) =>
  ask({ do: "task", task: id }).catch((error) => ({ id, status: "unknown", message: error.message }));
const wordsOf = (task) => `${task.status}${task.message ? `: ${task.message}` : ""}`;

function drawTasks() {
  const shown = (known?.tasks ?? []).filter((task) => matches(task.id, task.status, task.message));
  if (known?.error) say(visible(known.error));
  else say(known && !shown.length ? "No tasks are known. Start a tool as a task, or enter an id." : "");
  if (!list.querySelector(".task-id")) list.replaceChildren(entry(), el("div"));
  list.lastChild.replaceChildren(...shown.map((task) => {
    const row = el("button", { type: "button", className: "offer", onclick: () => choose(task, row) },
      el("span", { className: "name" }, shortName(task.id, 60)),
      el("span", { className: "about" }, shortName(wordsOf(task), 160)));
    if (chosen === task.id) mark(row);
    return row;
  }));
}

function choose(task, row) {
  chosen = task.id;
  mark(row);
  show(...about(task));
}

function entry() {
  const id = el("input", {
    type: "text", placeholder: "Id of a task", "aria-label": "Id of a task", autocomplete: "off", spellcheck: false,
  });
  const look = () => {
    if (!id.value) return;
    chosen = id.value;
    draw();
    showLater(state(id.value).then(about));
  };
  return el("div", { className: "task-id" }, id, button("Look", look));
}

function about(task) {
  const { element: wrong, tell } = complaint();
  const then = (work) => async () => {
    tell("");
    try {
      await work();
    } catch (error) {
      tell(error.message);
    }
  };
  const look = () => showLater(ask({ do: "task", task: task.id }).then(about));
  const cancel = async () => {
    await ask({ do: "cancelTask", task: task.id });
    await showLater(state(task.id).then(about));
  };
  return [
    el("h2", {}, "Task"),
    el("p", {}, el("code", {}, shortName(task.id, 500))),
    el("p", { className: "message" }, visible(wordsOf(task))),
    task.updatedAt ? el("p", { className: "faint" }, shortName(task.updatedAt)) : null,
    el("div", { className: "buttons" },
      button("Look again", then(look)),
      button("Wait for the result", then(() => start("result", task.id, null)), "main"),
      button("Cancel the task", then(cancel), "danger")),
    wrong,
  ];
}
