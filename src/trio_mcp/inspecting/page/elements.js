// Elements of the page. Data from a server is only shown as text: no string is ever parsed as markup.

const PROPERTIES = new Set([
  "className", "id", "title", "type", "name", "value", "checked", "disabled", "hidden", "placeholder", "rows", "open",
  "min", "max", "step", "spellcheck", "autocomplete", "required", "alt", "controls", "htmlFor", "onclick", "oninput",
  "onchange", "onsubmit", "ontoggle", "onkeydown", "colSpan",
]);

/** Make an element with some properties; children are elements, or strings that become text. */
export function el(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "role" || name.startsWith("aria-")) made.setAttribute(name, value);
    else if (PROPERTIES.has(name)) made[name] = value;
    else throw new Error(`no property of elements here: ${name}`);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const button = (words, onclick, className = "") => el("button", { type: "button", className, onclick }, words);

const MOST_SHOWN = 50_000;

/** Unchanged text, shortened until the user opens all of it. */
export function longText(text, className = "text") {
  const shown = el("pre", { className }, visible(text.slice(0, MOST_SHOWN)));
  if (text.length <= MOST_SHOWN) return shown;
  const more = button(`Show all ${text.length.toLocaleString("en")} characters`, () => {
    shown.textContent = visible(text);
    more.remove();
  });
  return el("div", {}, shown, more);
}

export const json = (value) => longText(JSON.stringify(value, null, 2) ?? "null", "json");

/** A value as JSON in a closed element, which is only rendered when the user opens it. */
export function folded(words, value) {
  const open = () => details.open && details.children.length === 1 && details.append(json(value));
  const details = el("details", { className: "raw", ontoggle: open }, el("summary", {}, words));
  return details;
}

// Invisible characters, and those that change the text direction, could make a name look like another one.
const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Text with its invisible characters escaped. */
export const visible = (text) =>
  String(text).replace(HIDDEN, (sign) => `\\u${sign.charCodeAt(0).toString(16).padStart(4, "0")}`);

/** A name on one line, shortened. */
export function shortName(text, most = 120) {
  const line = visible(String(text ?? "")).replace(/\s+/g, " ").trim();
  return line.length <= most ? line : `${line.slice(0, most - 1)}…`;
}

/** A name, with line breaks allowed after punctuation. */
export const breakable = (name) => name.split(/(?<=[/_.-])/).flatMap((part) => [part, el("wbr")]);

export const duration = (seconds) =>
  seconds < 0.0995 ? `${(seconds * 1000).toFixed(1)} ms` : seconds < 100 ? `${seconds.toFixed(2)} s` : `${Math.round(seconds)} s`;

export const size = (bytes) =>
  bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`;

export const clock = (at) => {
  const time = new Date(at);
  const two = (number) => String(number).padStart(2, "0");
  return `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}.${String(time.getMilliseconds()).padStart(3, "0")}`;
};

/** Send a request to the inspector's own server. Throws an `Error` whose message is shown to the user. */
export async function ask(what) {
  const response = await fetch("do", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify(what),
  });
  const text = await response.text();
  let found;
  try {
    found = JSON.parse(text);
  } catch {
    throw new Error(text.slice(0, 500) || response.statusText);
  }
  if (!response.ok) throw new Error(found.error);
  return what.do === "result" ? found : found.answer;
}
