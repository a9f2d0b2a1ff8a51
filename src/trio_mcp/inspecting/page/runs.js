// Requests started in the page: cards with progress, results, timelines, and a button to cancel.

import { ask, breakable, button, duration, el, shortName, size, visible } from "./elements.js";
import { resultElement } from "./results.js";

const place = document.getElementById("cards");
const none = document.getElementById("none");
const cards = new Map();
const started = new Set();
const MOST_AT_ONCE = 1_000_000;

/** Start a request. Its card appears with the events. Throws as `ask`. */
export async function start(kind, name, given) {
  const { run } = await ask({ do: "start", kind, name, arguments: given });
  started.add(run);
  if (cards.has(run)) cards.get(run).update(cards.get(run).last);
  return run;
}

export function run(told) {
  if (!cards.has(told.id)) {
    cards.set(told.id, new Card(told));
    place.prepend(cards.get(told.id).element);
    none.hidden = true;
  }
  cards.get(told.id).update(told);
}

/** The place for the questions of a request, or `null` if the request has no card. */
export const questionsOf = (id) => cards.get(id)?.questions ?? null;

export function runForgotten(id) {
  cards.get(id)?.element.remove();
  cards.delete(id);
  none.hidden = cards.size > 0;
}

/** Remove the cards of requests that the server no longer sends. */
export function onlyRuns(ids) {
  [...cards.keys()].filter((id) => !ids.has(id)).forEach(runForgotten);
}

const WORDS = { running: "running", done: "done", failed: "failed", cancelled: "cancelled", lost: "connection lost" };
const KINDS = { call: "Call", task: "Start task", result: "Wait for task", read: "Read", prompt: "Prompt" };

class Card {
  constructor(told) {
    this.status = el("span", { className: "status" });
    this.time = el("span", { className: "faint time" });
    this.cancel = button(told.kind === "call" ? "Cancel call" : "Cancel request", () => this.leave(), "danger");
    this.questions = el("div", { className: "questions" });
    this.bar = el("progress", { hidden: true });
    this.news = el("p", { className: "news", hidden: true });
    this.warning = el("p", { className: "bad", hidden: true });
    this.body = el("div", { className: "body" });
    this.show = button("Result", () => this.load(), "plain");
    this.draw = button("Timeline", () => this.picture(), "plain");
    this.pictures = el("div", { className: "pictures" });
    this.element = el(
      "article",
      { className: "card" },
      el("div", { className: "top" }, el("h3", {}, `${KINDS[told.kind] ?? told.kind} `, el("span", { className: "name" }, ...breakable(shortName(told.name)))), this.status, this.time, this.cancel),
      told.given && told.given !== "{}" ? el("pre", { className: "given" }, visible(told.given)) : null,
      this.bar, this.news, this.questions, this.warning, this.body, el("div", { className: "buttons" }, this.show, this.draw), this.pictures,
    );
    this.element.dataset.run = told.id;
  }

  update(told) {
    this.last = told;
    const isRunning = told.status === "running";
    this.element.dataset.status = told.isError ? "failed" : told.status;
    this.status.textContent = told.cancelling ? "cancelling" : told.isError ? "tool failed" : WORDS[told.status];
    this.time.textContent = told.seconds === null ? "" : duration(told.seconds);
    this.cancel.hidden = !isRunning;
    this.cancel.disabled = told.cancelling;
    const { progress } = told;
    this.bar.hidden = progress === null && !isRunning;
    if (progress && typeof progress.total === "number" && progress.total > 0) {
      this.bar.max = progress.total;
      this.bar.value = Math.min(Math.max(progress.progress, 0), progress.total);
    } else if (!isRunning) this.bar.hidden = true;
    this.news.hidden = progress === null;
    if (progress) {
      const total = progress.total === null ? "" : ` of ${progress.total}`;
      this.news.textContent = visible(`${progress.progress}${total}${progress.message ? `: ${progress.message}` : ""}`);
    }
    this.warning.hidden = !told.warning;
    this.warning.textContent = told.warning ? `The result doesn't fit the output schema: ${visible(told.warning)}` : "";
    if (told.error) this.body.replaceChildren(el("p", { className: "bad" }, visible(told.error)));
    this.show.hidden = told.bytes === null || this.isShown;
    if (told.bytes !== null) this.show.textContent = `Result, ${size(told.bytes)}`;
    if (told.bytes !== null && started.has(told.id) && told.bytes <= MOST_AT_ONCE) this.load();
  }

  async leave() {
    try {
      await ask({ do: "cancel", run: this.last.id });
    } catch (error) {
      this.body.replaceChildren(el("p", { className: "bad" }, visible(error.message)));
    }
  }

  async load() {
    if (this.isShown) return;
    this.isShown = true;
    this.show.hidden = true;
    try {
      const result = await ask({ do: "result", run: this.last.id });
      this.body.replaceChildren(resultElement(result, (uri) => start("read", uri, null)));
    } catch (error) {
      this.body.replaceChildren(el("p", { className: "bad" }, visible(error.message)));
    }
  }

  picture() {
    if (this.pictures.children.length) {
      this.pictures.replaceChildren();
      return;
    }
    // A running request grows without news. The last picture is drawn after its end.
    const version = () => (this.last.status === "running" ? Date.now() : this.last);
    this.pictures.append(timelineImage(`run=${this.last.id}`, version));
  }
}

const REDRAWN_EVERY = 1000; // milliseconds

/** A picture drawn by the inspector's own server. While it is on the page, it is drawn again when `version()` changes. */
export function timelineImage(query, version) {
  const image = el("img", { alt: "The requests on one axis of time", className: "timeline" });
  const link = el("a", { title: "Open the picture alone" }, image);
  link.target = "_blank";
  link.rel = "noopener noreferrer";
  let drawn;
  const load = () => {
    drawn = version();
    link.href = image.src = `timeline.svg?${query}&now=${Date.now()}`;
  };
  load();
  const redraw = setInterval(() => {
    if (!image.isConnected) clearInterval(redraw);
    else if (image.complete && version() !== drawn) load();
  }, REDRAWN_EVERY);
  return el("div", { className: "picture" }, link);
}

