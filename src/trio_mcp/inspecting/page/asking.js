// Requests for an item: each kind of item has a form, with buttons that start requests.

import { completed } from "./completions.js";
import { button, el, shortName } from "./elements.js";
import { formFor } from "./forms.js";
import { start } from "./runs.js";
import { server } from "./server.js";
import { expanded, variablesOf } from "./templates.js";
import { complaint } from "./view.js";

const MOST_ARGUMENTS = 100;

/** The elements with which the user starts requests for an item, by its kind. */
export const ASKING = {
  tools: askTool,
  resources: askResource,
  skills: askResource,
  templates: askTemplate,
  prompts: askPrompt,
};

/** A form with buttons. Each button, `{words, kind, name, isMain}`, starts a request with the values of the form. */
function asking(form, ...buttons) {
  const { element: wrong, tell } = complaint();
  const go = async ({ kind, name }) => {
    tell("");
    try {
      await start(kind, name(), form.value());
    } catch (error) {
      tell(error.message);
    }
  };
  const shown = buttons.map((each) => button(each.words, () => go(each), each.isMain ? "main" : ""));
  const made = el("form", {}, form.element, el("div", { className: "buttons" }, ...shown), wrong);
  made.addEventListener("submit", (event) => event.preventDefault());
  made.addEventListener("unfit", (event) => tell(event.detail));
  made.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) go(buttons[0]);
  });
  return made;
}

const without = (element) => ({ element, value: () => null });
const strings = (properties, required) => ({ type: "object", properties, required });

function askTool(tool) {
  const hints = Object.entries(tool.annotations ?? {}).filter(([name, is]) => name.endsWith("Hint") && is === true);
  const badges = hints.map(([name]) => el("span", { className: "badge" }, shortName(name.replace("Hint", ""), 40)));
  const buttons = [{ words: "Call", kind: "call", name: () => tool.name, isMain: true }];
  const canBeTask = server.era === "modern" || tool.execution?.taskSupport;
  if (canBeTask && (server.has ?? []).includes("tasks")) {
    buttons.push({ words: "Start as a task", kind: "task", name: () => tool.name });
  }
  return [el("p", { className: "badges" }, ...badges), asking(formFor(tool.inputSchema), ...buttons)];
}

function askResource({ uri, mimeType }) {
  return [
    el("p", {}, el("code", {}, shortName(uri, 2000))),
    el("p", { className: "faint" }, shortName(mimeType ?? "")),
    asking(without(el("div")), { words: "Read", kind: "read", name: () => uri, isMain: true }),
  ];
}

function askTemplate({ uriTemplate }) {
  const variables = variablesOf(uriTemplate).map((name) => [name, { type: "string" }]);
  const form = formFor(strings(Object.fromEntries(variables), []));
  completed(form, "template", uriTemplate);
  const name = () => expanded(uriTemplate, form.value());
  return [
    el("p", {}, el("code", {}, shortName(uriTemplate, 2000))),
    asking(without(form.element), { words: "Read", kind: "read", name, isMain: true }),
  ];
}

function askPrompt(prompt) {
  const given = (Array.isArray(prompt.arguments) ? prompt.arguments : []).slice(0, MOST_ARGUMENTS);
  const properties = given.map(({ name, description, title }) => [name, { type: "string", description, title }]);
  const needed = given.filter((each) => each.required).map((each) => each.name);
  const form = formFor(strings(Object.fromEntries(properties), needed));
  completed(form, "prompt", prompt.name);
  return [asking(form, { words: "Get", kind: "prompt", name: () => prompt.name, isMain: true })];
}
