// Forms from JSON Schemas. If a schema, or a part of it, can't be shown as a form, the user enters JSON.

import { button, el, shortName, visible } from "./elements.js";

const MOST_FIELDS = 200;
const MOST_LEVELS = 5;
const MOST_CHOICES = 500;
const MOST_ITEMS = 200;

/** A required field is empty, or a field has an invalid value. The message names the field. */
export class Unfit extends Error {}

/**
 * Make a form for an object: its element, and `value()`, which throws `Unfit`. `given` has the initial values.
 * The user can switch between the fields and JSON.
 */
export function formFor(schema, given = undefined) {
  const holder = el("div", { className: "form" });
  let current;
  const show = (asJSON, begin) => {
    const budget = { fields: MOST_FIELDS };
    const empty = { element: el("p", { className: "faint" }, "There is nothing to fill in."), get: () => undefined };
    const fields = asJSON ? null : takesNothing(schema) ? empty : objectField(schema, { root: schema, budget, level: 0, path: "" }, begin);
    current = fields ?? jsonField({ path: "the arguments" }, begin ?? {}, true);
    const words = fields ? "Edit as JSON" : "Edit as a form";
    const change = button(words, () => {
      try {
        show(Boolean(fields), current.get() ?? {});
      } catch (error) {
        current.element.dispatchEvent(new CustomEvent("unfit", { bubbles: true, detail: error.message }));
      }
    }, "plain");
    holder.replaceChildren(current.element, ...(canBeForm(schema) || takesNothing(schema) ? [change] : []));
  };
  show(false, given);
  return { element: holder, value: () => current.get() ?? {} };
}

const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const canBeForm = (schema) => isObject(schema) && isObject(schema.properties) && Object.keys(schema.properties).length > 0;

const takesNothing = (schema) =>
  isObject(schema) && !canBeForm(schema) && (isObject(schema.properties) || schema.additionalProperties === false);

/** The decoded part of a reference; unchanged if it isn't percent-encoded UTF-8. */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The schema after resolving local references and unions with null. `nullable` is true if null is allowed. */
function resolved(schema, root) {
  let nullable = false;
  for (let hops = 0; hops < 16 && isObject(schema); hops += 1) {
    const { description, title, default: preset } = schema;
    const kept = Object.fromEntries(Object.entries({ description, title, default: preset }).filter(([, one]) => one !== undefined));
    const options = schema.anyOf ?? schema.oneOf;
    if (typeof schema.$ref === "string" && schema.$ref.startsWith("#")) {
      let found = root;
      for (const part of schema.$ref.slice(1).split("/").slice(1)) {
        const key = decoded(part).replaceAll("~1", "/").replaceAll("~0", "~");
        found = isObject(found) && Object.hasOwn(found, key) ? found[key] : undefined;
      }
      schema = isObject(found) ? { ...found, ...kept } : undefined;
    } else if (Array.isArray(schema.allOf) && schema.allOf.length === 1 && isObject(schema.allOf[0])) {
      schema = { ...schema.allOf[0], ...kept };
    } else if (Array.isArray(options) && options.length === 2 && options.some((one) => one?.type === "null")) {
      nullable = true;
      schema = { ...options.find((one) => one?.type !== "null"), ...kept };
    } else if (Array.isArray(schema.type) && schema.type.length === 2 && schema.type.includes("null")) {
      nullable = true;
      schema = { ...schema, type: schema.type.find((one) => one !== "null") };
    } else {
      return { schema, nullable };
    }
  }
  return { schema: undefined, nullable };
}

const titleOf = (title, value) => (typeof title === "string" ? title : typeof value === "string" ? value : JSON.stringify(value));

/** The choices of a schema, as values with titles; null if any value is allowed. */
function choicesOf(schema) {
  if (!isObject(schema)) return null;
  if (Array.isArray(schema.enum)) {
    return schema.enum.map((value, at) => [value, titleOf(schema.enumNames?.[at], value)]);
  }
  if ("const" in schema) return [[schema.const, JSON.stringify(schema.const)]];
  const options = schema.oneOf ?? schema.anyOf;
  if (Array.isArray(options) && options.length && options.every((one) => isObject(one) && "const" in one)) {
    return options.map((one) => [one.const, titleOf(one.title, one.const)]);
  }
  return null;
}

/** A field for any value: its element, and `get()`, which returns undefined if the field is left out. */
function fieldFor(schema, at, given, required) {
  at.budget.fields -= 1;
  const found = resolved(schema, at.root);
  const preset = found.schema?.default;
  // A default of null means that the server uses null if the field is left out.
  const begin = given !== undefined ? given : preset === null && !required ? undefined : preset;
  const choices = choicesOf(found.schema);
  const kind = found.schema?.type;
  if (found.schema === undefined || at.budget.fields < 0) return jsonField(at, begin, required);
  if (choices !== null) return choices.length <= MOST_CHOICES ? choiceField(choices, at, begin, required) : jsonField(at, begin, required);
  if (kind === "boolean") return booleanField(at, begin, required);
  if (kind === "integer" || kind === "number") return numberField(found.schema, at, begin, required);
  if (kind === "string") return textField(found.schema, at, begin, required);
  if (kind === "array") return arrayField(found.schema, at, begin, required);
  if (kind === "object" || found.schema.properties) return objectField(found.schema, at, begin, required) ?? jsonField(at, begin, required);
  return jsonField(at, begin, required);
}

function objectField(schema, at, given, required = true) {
  if (!canBeForm(schema) || at.level >= MOST_LEVELS || Object.keys(schema.properties).length > at.budget.fields) return null;
  const needed = new Set(Array.isArray(schema.required) ? schema.required : []);
  const begin = isObject(given) ? given : isObject(schema.default) ? schema.default : {};
  const parts = new Map();
  const rows = [];
  for (const [name, part] of Object.entries(schema.properties)) {
    const path = at.path ? `${at.path}.${name}` : name;
    const value = Object.hasOwn(begin, name) ? begin[name] : undefined;
    const field = fieldFor(part, { ...at, level: at.level + 1, path }, value, needed.has(name));
    parts.set(name, field);
    rows.push(row(name, part, at.root, field, needed.has(name)));
  }
  const rest = Object.entries(begin).filter(([name]) => !parts.has(name));
  const get = () => {
    const value = Object.fromEntries(rest);
    for (const [name, field] of parts) {
      const part = field.get();
      if (part !== undefined) value[name] = part;
    }
    return !required && at.level > 0 && Object.keys(value).length === 0 ? undefined : value;
  };
  return { element: el("div", { className: at.level ? "nested" : "fields" }, ...rows), get };
}

function row(name, part, root, field, required) {
  const { schema } = resolved(part, root);
  const title = typeof schema?.title === "string" && schema.title && schema.title.toLowerCase() !== name.replaceAll("_", " ").toLowerCase()
    ? el("span", { className: "faint" }, ` ${shortName(schema.title)}`) : null;
  const kind = el("span", { className: "kind" }, ` ${kindOf(part, root)}${required ? "" : ", optional"}`);
  const label = el("span", { className: "label" }, shortName(name), required ? el("b", { className: "needed", title: "needed" }, " *") : null, title, kind);
  const about = typeof schema?.description === "string" ? el("span", { className: "about" }, visible(schema.description.slice(0, 1000))) : null;
  // A label belongs to one control. If a field has several controls, each has its own label.
  return el(field.many ? "div" : "label", { className: "row" }, label, field.element, about);
}

function kindOf(part, root) {
  const { schema, nullable } = resolved(part, root);
  if (!schema) return "JSON";
  const kind = choicesOf(schema) ? "choice" : typeof schema.type === "string" ? schema.type : schema.properties ? "object" : "JSON";
  const format = typeof schema.format === "string" ? ` (${shortName(schema.format, 20)})` : "";
  return shortName(`${kind}${format}${nullable ? " or null" : ""}`, 60);
}

function textField(schema, at, given, required) {
  const kind = new Map([["email", "email"], ["uri", "url"], ["date", "date"]]).get(schema.format);
  const control = kind
    ? el("input", { type: kind, autocomplete: "off" })
    : el("textarea", { rows: 1, spellcheck: false });
  control.name = at.path;
  if (typeof given === "string") control.value = given;
  const get = () => (control.value === "" && !required ? undefined : control.value);
  return { element: control, get };
}

function numberField(schema, at, given, required) {
  const control = el("input", { type: "text", name: at.path, autocomplete: "off", spellcheck: false });
  control.inputMode = schema.type === "integer" ? "numeric" : "decimal";
  if (typeof given === "number") control.value = String(given);
  const get = () => {
    const text = control.value.trim();
    if (text === "") {
      if (required) throw new Unfit(`${at.path}: a number is needed`);
      return undefined;
    }
    const value = Number(text);
    if (!Number.isFinite(value)) throw new Unfit(`${at.path}: not a number`);
    if (schema.type === "integer" && !Number.isSafeInteger(value)) throw new Unfit(`${at.path}: must be a whole number`);
    return value;
  };
  return { element: control, get };
}

function booleanField(at, given, required) {
  if (required) {
    const box = el("input", { type: "checkbox", name: at.path, checked: given === true });
    return { element: box, get: () => box.checked };
  }
  return choiceField([[true, "true"], [false, "false"]], at, given, false);
}

function choiceField(choices, at, given, required) {
  const begin = choices.findIndex(([value]) => JSON.stringify(value) === JSON.stringify(given));
  const options = choices.map(([, title], number) => el("option", { value: String(number) }, shortName(title)));
  if (!required || begin < 0) options.unshift(el("option", { value: "" }, required ? "choose…" : "(left out)"));
  const control = el("select", { name: at.path }, ...options);
  control.value = begin < 0 ? "" : String(begin);
  const get = () => {
    if (control.value === "" && required) throw new Unfit(`${at.path}: choose one`);
    return control.value === "" ? undefined : choices[Number(control.value)][0];
  };
  return { element: control, get };
}

function arrayField(schema, at, given, required) {
  if (at.level >= MOST_LEVELS) return jsonField(at, given, required);
  const choices = choicesOf(resolved(schema.items, at.root).schema);
  if (choices !== null && choices.length <= MOST_CHOICES) return severalField(choices, at, given, required);
  const items = [];
  const list = el("div", { className: "items" });
  const add = (value) => {
    if (items.length >= MOST_ITEMS) return;
    const field = isObject(schema.items)
      ? fieldFor(schema.items, { ...at, budget: { fields: MOST_FIELDS }, level: at.level + 1, path: `${at.path}[${items.length}]` }, value, true)
      : jsonField({ ...at, path: `${at.path}[${items.length}]` }, value, true);
    const remove = button("Remove", () => {
      items.splice(items.indexOf(field), 1);
      line.remove();
    }, "plain");
    const line = el("div", { className: "item" }, field.element, remove);
    items.push(field);
    list.append(line);
  };
  if (Array.isArray(given)) given.slice(0, MOST_ITEMS).forEach(add);
  const element = el("div", { className: "array" }, list, button("Add one", () => add(undefined), "plain"));
  const get = () => (items.length === 0 && !required ? undefined : items.map((field) => field.get() ?? null));
  return { element, get, many: true };
}

function severalField(choices, at, given, required) {
  const chosen = new Set((Array.isArray(given) ? given : []).map((value) => JSON.stringify(value)));
  const boxes = choices.map(([value]) => el("input", { type: "checkbox", checked: chosen.has(JSON.stringify(value)) }));
  const labels = choices.map(([, title], number) => el("label", { className: "box" }, boxes[number], ` ${shortName(title)}`));
  const get = () => {
    const values = choices.filter((_, number) => boxes[number].checked).map(([value]) => value);
    return values.length === 0 && !required ? undefined : values;
  };
  return { element: el("div", { className: "boxes" }, ...labels), get, many: true };
}

function jsonField(at, given, required) {
  const control = el("textarea", { rows: 2, name: at.path, spellcheck: false, placeholder: "JSON", className: "code" });
  if (given !== undefined) control.value = JSON.stringify(given, null, 2);
  const get = () => {
    if (control.value.trim() === "") {
      if (required) throw new Unfit(`${at.path}: JSON is needed`);
      return undefined;
    }
    try {
      return JSON.parse(control.value);
    } catch (error) {
      throw new Unfit(`${at.path}: not JSON: ${error.message}`);
    }
  };
  return { element: control, get };
}
