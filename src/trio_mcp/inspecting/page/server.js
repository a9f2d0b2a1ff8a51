// The server: its description, the state of its connection, and their buttons.

import { ask, duration, el, json, shortName, visible } from "./elements.js";
import { at } from "./view.js";

const STATES = { connecting: "connecting", connected: "connected", lost: "connection lost" };
const [name, revision, state, facts, more, ping, reconnect] =
  ["name", "revision", "state", "facts", "more", "ping", "reconnect"].map(at);
const place = at("place");

/** The latest state that the inspector's own server has sent. */
export let server = { state: "connecting" };
let connection; // number of the latest connection

/** Store and show the state of the server. Returns whether there is a new connection. */
export function serverChanged(told) {
  const isNew = told.connection !== undefined && told.connection !== connection;
  if (isNew) {
    connection = told.connection;
    more.open = false;
  }
  server = told;
  reconnect.disabled = server.state === "connecting";
  drawServer();
  return isNew;
}

export function drawServer() {
  const { info, instructions, capabilities } = server;
  if (info !== undefined) name.textContent = info ? shortName(info.title ?? info.name, 80) : "a server without a name";
  revision.textContent = server.revision ? `${server.revision}, ${server.era}` : "";
  state.textContent = STATES[server.state];
  state.dataset.state = server.state;
  drawPlace();
  const told = [];
  if (server.reason) told.push(el("p", { className: "bad" }, visible(server.reason)));
  if (info) told.push(el("p", {}, `${shortName(info.name, 200)} ${shortName(info.version, 80)}`));
  if (info?.websiteUrl) told.push(el("p", {}, el("code", {}, shortName(info.websiteUrl, 500))));
  if (instructions) told.push(el("pre", { className: "text" }, visible(instructions)));
  if (capabilities) told.push(json(capabilities));
  facts.replaceChildren(...told);
  if (server.state === "lost") more.open = true;
}

/** Show the process id of the server, and how long the connection has been open. */
function drawPlace() {
  const seconds = Math.max(0, Math.floor((Date.now() - server.since) / 1000));
  const elapsed = `${Math.floor(seconds / 60)}:${String(seconds % 60).padStart(2, "0")}`;
  const words = server.pid ? [`process ${server.pid}`, elapsed] : [elapsed];
  place.textContent = state.dataset.state === "connected" && server.since ? words.join(", ") : "";
}

setInterval(drawPlace, 1000);

/** Show that the inspector's own server has ended. */
export function programEnded() {
  state.textContent = "trio-mcp has ended";
  state.dataset.state = "lost";
  drawPlace();
}

reconnect.addEventListener("click", () => {
  reconnect.disabled = true; // until the state of the connection changes
  ask({ do: "reconnect" });
});

ping.addEventListener("click", async () => {
  ping.disabled = true;
  try {
    ping.textContent = `Ping ${duration((await ask({ do: "ping" })).seconds)}`;
  } catch (error) {
    ping.textContent = "Ping failed";
    ping.title = visible(error.message);
  }
  ping.disabled = false;
});
