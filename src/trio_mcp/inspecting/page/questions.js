// Questions of the server, answered in the card of their request. Other questions are shown at the top of the page.

import { ask, button, el, shortName, visible } from "./elements.js";
import { formFor } from "./forms.js";
import { blockElement } from "./results.js";
import { questionsOf } from "./runs.js";
import { complaint } from "./view.js";

const place = document.getElementById("questions");
const open = new Map();

/** Show a question, until `questionOver` or its answer. */
export function question({ id, kind, data, run }) {
  if (open.has(id)) return;
  const { element: wrong, tell } = complaint();
  const answer = async (given) => {
    try {
      await ask({ do: "answer", question: id, answer: given() });
      questionOver(id);
    } catch (error) {
      tell(error.message);
    }
  };
  const card = el("form", { className: "question" }, ...(SHOWN[kind] ?? (() => []))(data, answer), wrong);
  card.addEventListener("submit", (event) => event.preventDefault());
  card.addEventListener("unfit", (event) => tell(event.detail));
  card.dataset.question = id;
  open.set(id, card);
  (questionsOf(run) ?? place).append(card);
  card.scrollIntoView({ block: "nearest" });
  document.title = "(?) trio-mcp inspect";
}

export function questionOver(id) {
  open.get(id)?.remove();
  open.delete(id);
  if (!open.size) document.title = "trio-mcp inspect";
}

export function noQuestions() {
  [...open.keys()].forEach(questionOver);
}

const heading = (words) => el("h2", {}, words);
const buttons = (...all) => el("div", { className: "buttons" }, ...all);
const plain = (action) => () => ({ action });

const SHOWN = {
  form(data, answer) {
    const form = formFor(data.requestedSchema);
    return [
      heading("The server has a question"),
      el("p", { className: "message" }, visible(data.message)),
      form.element,
      buttons(
        button("Send", () => answer(() => ({ action: "accept", content: form.value() })), "main"),
        button("Decline", () => answer(plain("decline"))),
        button("Dismiss", () => answer(plain("cancel"))),
      ),
    ];
  },

  url(data, answer) {
    const address = new URL(data.url);
    const visit = () => {
      if (address.protocol === "https:" || address.protocol === "http:") window.open(address.href, "_blank", "noopener,noreferrer");
      answer(plain("accept"));
    };
    const odd = /[^\x00-\x7f]|xn--/.test(data.url.split("/")[2] ?? "") || address.hostname.includes("xn--");
    return [
      heading("The server wants you to open a page"),
      el("p", { className: "message" }, visible(data.message)),
      el("p", {}, "The page is on the host ", el("strong", { className: "host" }, address.host), "."),
      odd ? el("p", { className: "bad" }, "The host name has letters that look like others.") : null,
      el("p", {}, el("code", {}, shortName(address.href, 2000))),
      buttons(button("Open the page", visit, "main"), button("Decline", () => answer(plain("decline"))), button("Dismiss", () => answer(plain("cancel")))),
    ].filter(Boolean);
  },

  sampling(data, answer) {
    const control = el("textarea", { rows: 3, name: "text", "aria-label": "Model response" });
    const messages = (Array.isArray(data.messages) ? data.messages : []).slice(-50).map((message) => {
      const content = Array.isArray(message.content) ? message.content : [message.content];
      return el("div", { className: "turn" }, el("h4", {}, shortName(message.role, 20)), ...content.map((block) => blockElement(block)));
    });
    return [
      heading("The server requests a model response"),
      el("p", { className: "faint" }, `Write the response yourself. The server allows ${Number(data.maxTokens)} tokens.`),
      ...(data.systemPrompt ? [el("div", { className: "turn" }, el("h4", {}, "system"), el("pre", { className: "text" }, visible(data.systemPrompt)))] : []),
      ...messages,
      control,
      buttons(button("Send", () => answer(() => ({ text: control.value })), "main"), button("Refuse", () => answer(plain("decline")))),
    ];
  },

  roots(data, answer) {
    const known = (Array.isArray(data.roots) ? data.roots : []).map((root) => (root.name ? `${root.uri} ${root.name}` : root.uri));
    const control = el("textarea", { rows: 3, name: "roots", value: known.join("\n"), placeholder: "file:///home/me/project My project", spellcheck: false, "aria-label": "Roots" });
    const given = () => ({
      roots: control.value.split("\n").map((line) => line.trim()).filter(Boolean).map((line) => {
        const [uri, ...name] = line.split(" ");
        return name.length ? { uri, name: name.join(" ") } : { uri };
      }),
    });
    return [
      heading("The server requests your roots"),
      el("p", { className: "faint" }, "One root per line: a file:// URI and optionally a name. Leave empty to share no folder."),
      control,
      buttons(button("Send", () => answer(given), "main")),
    ];
  },
};
