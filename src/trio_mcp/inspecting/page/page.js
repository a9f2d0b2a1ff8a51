// The page: the server's offers on tabs, the chosen one with a form, and the events of our own server.

import { ask, breakable, button, clock, duration, el, json, shortName, size, visible } from "./elements.js";
import { formFor } from "./forms.js";
import { noQuestions, question, questionOver } from "./questions.js";
import { onlyRuns, run, runForgotten, start, timelineImage } from "./runs.js";

const at = (id) => document.getElementById(id);
const [tabs, list, detail, filter, note] = ["tabs", "list", "detail", "filter", "note"].map(at);
const MOST_ROWS = 400;
const MOST_LINES = 1000;
const LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"];

let server = { state: "connecting" };
let tab = "tools";
const lists = {}; // by kind: {items, more}, {error}, or {loading}
const logs = [];
const frames = [];

// Tabs

const OFFERS = { tools: "Tools", resources: "Resources", templates: "Templates", prompts: "Prompts", skills: "Skills" };
const TITLES = { ...OFFERS, tasks: "Tasks", logs: "Logs", frames: "Messages" };

function drawTabs() {
  const has = server.has ?? [];
  const kinds = [...Object.keys(OFFERS).filter((kind) => has.includes(kind)), ...(has.includes("tasks") ? ["tasks"] : []), "logs", "frames"];
  if (server.has && !kinds.includes(tab)) tab = kinds[0];
  tabs.replaceChildren(...kinds.map((kind) => {
    const count = kind === "logs" ? logs.length : kind === "frames" ? frames.length : lists[kind]?.items?.length;
    const made = el("button", { type: "button", role: "tab", "aria-selected": String(kind === tab), onclick: () => choose(kind) }, TITLES[kind],
      count ? el("span", { className: "count" }, ` ${count}${lists[kind]?.more ? "+" : ""}`) : null);
    made.dataset.tab = kind;
    return made;
  }));
}

function choose(kind) {
  tab = kind;
  filter.value = "";
  list.replaceChildren(); // what the last tab has is not to be clicked before the next drawing
  detail.replaceChildren(el("p", { className: "faint" }, kind === "frames" ? "Choose a message to see it." : "Choose something from the list."));
  document.body.dataset.tab = kind;
  draw();
  if (kind in OFFERS && !lists[kind]) load(kind);
  if (kind === "tasks") loadTasks();
}

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

let drawing = false;
/** Draw soon: many events are one drawing. */
function draw() {
  if (drawing) return;
  drawing = true;
  requestAnimationFrame(() => {
    drawing = false;
    drawTabs();
    (tab === "logs" ? drawLogs : tab === "frames" ? drawFrames : tab === "tasks" ? drawTasks : drawOffers)();
  });
}

const say = (words) => {
  note.textContent = words;
  note.hidden = !words;
};

const matches = (...texts) => {
  const words = filter.value.trim().toLowerCase();
  return !words || texts.some((text) => String(text ?? "").toLowerCase().includes(words));
};

function drawOffers() {
  const known = lists[tab] ?? { loading: true };
  const all = known.items ?? [];
  const fitting = all.filter((one) => matches(one.name, one.title, one.uri, one.uriTemplate, one.description));
  const shown = fitting.slice(0, MOST_ROWS);
  if (known.error) say(visible(known.error));
  else if (known.loading) say(server.state === "connected" ? "Loading…" : "");
  else if (!fitting.length) say(all.length ? "Nothing fits the filter." : `The server has no ${TITLES[tab].toLowerCase()}.`);
  else if (fitting.length > shown.length || known.more) say(`The first ${shown.length} of ${fitting.length}${known.more ? " or more" : ""}: narrow the filter.`);
  else say("");
  list.replaceChildren(...shown.map((one) => {
    const where = one.uri ?? one.uriTemplate;
    const made = el("button", { type: "button", className: "offer", onclick: () => show(tab, one, made) },
      el("span", { className: "name" }, ...breakable(shortName(one.name))),
      el("span", { className: "about" }, shortName(where ?? one.description ?? one.title ?? "", 160)));
    made.dataset.name = one.name;
    if (chosen === one) made.setAttribute("aria-current", "true");
    return made;
  }));
}

// The chosen offer

let chosen = null;

function show(kind, one, made) {
  chosen = one;
  list.querySelectorAll("[aria-current]").forEach((other) => other.removeAttribute("aria-current"));
  made.setAttribute("aria-current", "true");
  const title = one.title ?? one.annotations?.title;
  const head = [el("h2", {}, shortName(one.name, 300)), title ? el("p", { className: "faint" }, shortName(title, 300)) : null];
  if (typeof one.description === "string") head.push(el("p", { className: "message" }, visible(one.description.slice(0, 20_000))));
  detail.replaceChildren(...head.filter(Boolean), ...FORMS[kind](one), whole(one));
  if (matchMedia("(max-width: 800px)").matches) detail.scrollIntoView({ block: "start" });
}

const whole = (one) => {
  const details = el("details", { className: "raw", ontoggle: () => details.open && details.children.length === 1 && details.append(json(one)) }, el("summary", {}, "As the server tells it"));
  return details;
};

/** A form with buttons, each of which starts a request with what is filled in. */
function asking(form, buttons) {
  const wrong = el("p", { className: "bad", role: "alert", hidden: true });
  const tell = (words) => {
    wrong.textContent = visible(words);
    wrong.hidden = !words;
  };
  const go = async (kind, name) => {
    tell("");
    try {
      await start(kind, name(), form.value());
    } catch (error) {
      tell(error.message);
    }
  };
  const made = el("form", {}, form.element, el("div", { className: "buttons" }, ...buttons.map(([words, kind, name, main]) => button(words, () => go(kind, name), main ? "main" : ""))), wrong);
  made.addEventListener("submit", (event) => event.preventDefault());
  made.addEventListener("unfit", (event) => tell(event.detail));
  made.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) go(buttons[0][1], buttons[0][2]);
  });
  return made;
}

const strings = (properties, required) => ({ type: "object", properties, required });

const FORMS = {
  tools(tool) {
    const hints = Object.entries(tool.annotations ?? {}).filter(([name, value]) => name.endsWith("Hint") && value === true);
    const form = formFor(tool.inputSchema);
    const support = tool.execution?.taskSupport;
    const buttons = [["Call", "call", () => tool.name, true]];
    if ((server.has ?? []).includes("tasks") && (server.era === "modern" || support)) buttons.push(["Start as a task", "task", () => tool.name]);
    const badges = hints.map(([name]) => el("span", { className: "badge" }, shortName(name.replace("Hint", ""), 40)));
    return [el("p", { className: "badges" }, ...badges), asking(form, buttons)];
  },
  resources: (one) => [el("p", {}, el("code", {}, shortName(one.uri, 2000))), el("p", { className: "faint" }, shortName(one.mimeType ?? "")), asking({ element: el("div"), value: () => null }, [["Read", "read", () => one.uri, true]])],
  skills: (one) => FORMS.resources(one),
  templates(one) {
    const names = [...String(one.uriTemplate).matchAll(/\{[+#./;?&]?([^{}]*)\}/g)].flatMap((found) => found[1].split(",")).map((name) => name.replace(/[*]$|:\d+$/, "")).slice(0, 50);
    const form = formFor(strings(Object.fromEntries(names.map((name) => [name, { type: "string" }])), []));
    completed(form, "template", one.uriTemplate);
    const uri = () => {
      const given = form.value();
      return String(one.uriTemplate).replace(/\{([+#./;?&]?)([^{}]*)\}/g, (_, operator, all) => expanded(operator, all.split(","), given));
    };
    return [el("p", {}, el("code", {}, shortName(one.uriTemplate, 2000))), asking({ element: form.element, value: () => null }, [["Read", "read", uri, true]])];
  },
  prompts(one) {
    const given = (Array.isArray(one.arguments) ? one.arguments : []).slice(0, 100);
    const properties = Object.fromEntries(given.map((each) => [each.name, { type: "string", description: each.description, title: each.title }]));
    const form = formFor(strings(properties, given.filter((each) => each.required).map((each) => each.name)));
    completed(form, "prompt", one.name);
    return [asking(form, [["Get", "prompt", () => one.name, true]])];
  },
};

/** RFC 6570, as far as servers use it: each expression with its operator. */
function expanded(operator, names, given) {
  const [first, between] = { "": ["", ","], "+": ["", ","], "#": ["#", ","], ".": [".", "."], "/": ["/", "/"], ";": [";", ";"], "?": ["?", "&"], "&": ["&", "&"] }[operator];
  const encoded = operator === "+" || operator === "#" ? encodeURI : encodeURIComponent;
  const values = names.map((name) => name.replace(/[*]$|:\d+$/, "")).filter((name) => given[name] !== undefined && given[name] !== "");
  const parts = values.map((name) => (";?&".includes(operator) && operator ? `${name}=${encoded(given[name])}` : encoded(given[name])));
  return parts.length ? first + parts.join(between) : "";
}

/** Offer what the server suggests for the arguments of a prompt or a template. */
function completed(form, kind, name) {
  if (!server.completions) return;
  form.element.querySelectorAll("textarea").forEach((control, number) => {
    const field = el("input", { type: "text", name: control.name, value: control.value, autocomplete: "off" });
    const offered = el("datalist", { id: `offered-${kind}-${number}` });
    field.setAttribute("list", offered.id);
    let latest = 0;
    field.addEventListener("input", async () => {
      control.value = field.value;
      const mine = (latest += 1);
      try {
        const { values } = await ask({ do: "complete", kind, name, argument: control.name, value: field.value });
        if (mine === latest) offered.replaceChildren(...values.map((value) => el("option", { value })));
      } catch {
        offered.replaceChildren(); // suggestions are a help, and no more
      }
    });
    control.hidden = true;
    control.after(field, offered);
  });
}

// Tasks

let tasks = null;

async function loadTasks() {
  try {
    tasks = await ask({ do: "tasks" });
    const known = new Set(tasks.tasks.map((task) => task.id));
    for (const id of tasks.seen.filter((one) => !known.has(one)).slice(0, 50)) tasks.tasks.push(await state(id));
    tasks.error = null;
  } catch (error) {
    tasks = { tasks: [], error: error.message };
  }
  draw();
}

const state = (id) => ask({ do: "task", task: id }).catch((error) => ({ id, status: "unknown", message: error.message }));

function drawTasks() {
  const known = (tasks?.tasks ?? []).filter((task) => matches(task.id, task.status, task.message));
  say(tasks?.error ? visible(tasks.error) : tasks && !known.length ? "No tasks are known. Start a tool as a task, or enter an id." : "");
  const id = el("input", { type: "text", placeholder: "Id of a task", "aria-label": "Id of a task", autocomplete: "off", spellcheck: false });
  if (!list.querySelector(".task-id")) list.replaceChildren(el("div", { className: "task-id" }, id, button("Look", async () => id.value && showTask(await state(id.value)))), el("div"));
  list.lastChild.replaceChildren(...known.map((task) => el("button", { type: "button", className: "offer", onclick: () => showTask(task) },
    el("span", { className: "name" }, shortName(task.id, 60)), el("span", { className: "about" }, shortName(`${task.status}${task.message ? `: ${task.message}` : ""}`, 160)))));
}

function showTask(task) {
  const wrong = el("p", { className: "bad", role: "alert" });
  const then = (work) => async () => {
    wrong.textContent = "";
    try {
      await work();
    } catch (error) {
      wrong.textContent = visible(error.message);
    }
  };
  detail.replaceChildren(
    el("h2", {}, "Task"), el("p", {}, el("code", {}, shortName(task.id, 500))),
    el("p", { className: "message" }, visible(`${task.status}${task.message ? `: ${task.message}` : ""}`)),
    task.updatedAt ? el("p", { className: "faint" }, shortName(task.updatedAt)) : null ?? "",
    el("div", { className: "buttons" },
      button("Look again", then(async () => showTask(await ask({ do: "task", task: task.id })))),
      button("Wait for the result", then(() => start("result", task.id, null)), "main"),
      button("Cancel the task", then(async () => { await ask({ do: "cancelTask", task: task.id }); showTask(await state(task.id)); }), "danger")),
    wrong,
  );
}

// Logs and messages

function drawLogs() {
  const shown = logs.filter((line) => matches(line.text, line.level, line.logger)).slice(-MOST_ROWS).reverse();
  say(shown.length ? "" : "Nothing was logged yet.");
  list.replaceChildren(...shown.map((line) => el("div", { className: `line ${LEVELS.includes(line.level) ? line.level : "other"}` },
    el("span", { className: "faint" }, clock(line.at)), el("span", { className: "level" }, shortName(line.level, 20)),
    el("span", { className: "words" }, visible(line.logger ? `${line.logger}: ${line.text}` : line.text)))));
  if (detail.dataset.shows !== "levels" && tab === "logs") showLevels();
}

let wanted = "info"; // what is asked for at the beginning

function showLevels() {
  const wrong = el("p", { className: "bad", role: "alert" });
  const control = el("select", { "aria-label": "Lowest level", onchange: async () => {
    try {
      await ask({ do: "logLevel", level: control.value });
      wanted = control.value;
      wrong.textContent = "";
    } catch (error) {
      wrong.textContent = visible(error.message);
    }
  } }, ...LEVELS.map((level) => el("option", { value: level }, level)));
  control.value = wanted;
  detail.replaceChildren(el("h2", {}, "Logs"), server.logs ? el("label", { className: "row" }, el("span", { className: "label" }, "Lowest level to be sent"), control) : el("p", { className: "faint" }, "The server declares no logs."),
    el("p", { className: "faint" }, "Lines of the level stderr are what a command writes to its standard error."), wrong);
  detail.dataset.shows = "levels";
}

function drawFrames() {
  const shown = frames.filter((frame) => matches(frame.words, frame.kind, frame.id)).slice(-MOST_ROWS).reverse();
  say(shown.length ? "" : "No message has passed yet.");
  list.replaceChildren(...shown.map((frame) => {
    const made = el("button", { type: "button", className: `frame ${frame.kind}`, onclick: () => showFrame(frame, made) },
      el("span", { className: "faint" }, clock(frame.at)), el("span", { className: "way" }, frame.dir === "out" ? "→" : frame.dir === "in" ? "←" : "·"),
      el("span", { className: "words" }, ...breakable(shortName(`${frame.words || frame.kind}${frame.id === null ? "" : ` #${frame.id}`}`, 80))),
      el("span", { className: "faint" }, frame.dir ? size(frame.bytes) : ""));
    return made;
  }));
  if (detail.dataset.shows !== "frames") showPicture();
}

function showPicture() {
  detail.replaceChildren(el("h2", {}, "All requests on one axis"), el("p", { className: "faint" }, "Secrets are masked. Choose a message to see it."),
    button("Draw again", showPicture), timelineImage(""));
  detail.dataset.shows = "frames";
}

async function showFrame(frame, made) {
  list.querySelectorAll("[aria-current]").forEach((other) => other.removeAttribute("aria-current"));
  made.setAttribute("aria-current", "true");
  const way = { out: "sent to the server", in: "received from the server" }[frame.dir] ?? "an event, which was not on the wire";
  let body;
  try {
    body = json(await ask({ do: "frame", frame: frame.n }));
  } catch (error) {
    body = el("p", { className: "bad" }, visible(error.message));
  }
  detail.replaceChildren(button("The picture", showPicture, "plain"), el("h2", {}, shortName(frame.words || frame.kind)), el("p", { className: "faint" }, `${frame.kind}, ${way} at ${clock(frame.at)}`), body);
  detail.dataset.shows = "frames";
}

// The server

function drawServer() {
  const { info, instructions, capabilities } = server;
  if (info !== undefined) at("name").textContent = info ? shortName(info.title ?? info.name, 80) : "a server without a name";
  at("revision").textContent = server.revision ? `${server.revision}, ${server.era}` : "";
  at("state").textContent = { connecting: "connecting", connected: "connected", lost: "connection lost" }[server.state];
  at("state").dataset.state = server.state;
  const facts = [];
  if (server.reason) facts.push(el("p", { className: "bad" }, visible(server.reason)));
  if (info) facts.push(el("p", {}, `${shortName(info.name, 200)} ${shortName(info.version, 80)}`));
  if (info?.websiteUrl) facts.push(el("p", {}, el("code", {}, shortName(info.websiteUrl, 500))));
  if (instructions) facts.push(el("pre", { className: "text" }, visible(instructions)));
  if (capabilities) facts.push(json(capabilities));
  at("facts").replaceChildren(...facts);
  if (server.state === "lost") at("more").open = true;
}

function serverChanged(told) {
  const isNew = told.connection !== undefined && told.connection !== connection;
  server = told;
  at("reconnect").disabled = server.state === "connecting";
  drawServer();
  if (!isNew) return draw();
  connection = told.connection;
  at("more").open = false;
  Object.keys(lists).forEach((kind) => delete lists[kind]);
  drawTabs();
  if (!chosen) choose(tab); // later, what was filled in stays as it is
  else if (tab in OFFERS) load(tab);
}

let connection; // the number of the last one

const push = (lines, line, key) => {
  if (!lines.length || lines.at(-1)[key] < line[key]) lines.push(line);
  if (lines.length > MOST_LINES) lines.splice(0, lines.length - MOST_LINES);
  draw();
};

let told = null; // ids of the requests of a beginning
const EVENTS = {
  everything() {
    noQuestions();
    logs.length = frames.length = 0;
    told = new Set();
    setTimeout(() => { onlyRuns(told); told = null; }, 1000);
  },
  server: serverChanged,
  run(one) {
    told?.add(one.id);
    run(one);
  },
  "run.forgotten": (one) => runForgotten(one.id),
  question,
  "question.over": (one) => questionOver(one.id),
  log: (line) => push(logs, line, "n"),
  frame: (frame) => push(frames, frame, "n"),
  changed: ({ list: kind }) => [kind, ...(kind === "resources" ? ["templates"] : [])].forEach((each) => (each === tab ? load(each) : delete lists[each])),
};

const events = new EventSource("events");
events.onmessage = ({ data }) => {
  const thing = JSON.parse(data);
  EVENTS[thing.what]?.(thing);
};
events.onerror = () => {
  at("state").textContent = "trio-mcp has ended";
  at("state").dataset.state = "lost";
};
events.onopen = drawServer;

filter.addEventListener("input", draw);
at("refresh").addEventListener("click", () => (tab in OFFERS ? load(tab) : tab === "tasks" ? loadTasks() : draw()));
at("reconnect").addEventListener("click", () => {
  at("reconnect").disabled = true; // until there is news of the connection
  ask({ do: "reconnect" });
});
at("ping").addEventListener("click", async () => {
  at("ping").disabled = true;
  try {
    at("ping").textContent = `Ping ${duration((await ask({ do: "ping" })).seconds)}`;
  } catch (error) {
    at("ping").textContent = "Ping failed";
    at("ping").title = visible(error.message);
  }
  at("ping").disabled = false;
});
document.body.dataset.tab = tab;
