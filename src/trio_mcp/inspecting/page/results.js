// Results: text, structured content, images and audio, as elements.

import { button, el, folded, json, longText, shortName, size } from "./elements.js";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif", "image/bmp"]);
const SOUNDS = /^audio\/(mpeg|mp3|wav|x-wav|wave|ogg|webm|aac|mp4|flac)$/;
const MOST_BLOCKS = 200;

/** Show a result of any kind of request. `read` is called with the URI of a linked resource. */
export function resultElement(result, read) {
  const parts = [];
  const blocks = Array.isArray(result?.content) ? result.content : [];
  const structured = result?.structuredContent;
  for (const block of blocks.slice(0, MOST_BLOCKS)) {
    if (structured === undefined || !repeats(block, structured)) parts.push(blockElement(block, read));
  }
  if (structured !== undefined) parts.push(el("h4", {}, "Structured content"), json(structured));
  for (const one of (Array.isArray(result?.contents) ? result.contents : []).slice(0, MOST_BLOCKS)) {
    parts.push(el("h4", {}, shortName(one?.uri, 300)), resourceElement(one));
  }
  for (const one of (Array.isArray(result?.messages) ? result.messages : []).slice(0, MOST_BLOCKS)) {
    parts.push(el("h4", {}, shortName(one?.role, 20)), ...several(one?.content).map((block) => blockElement(block, read)));
  }
  if (typeof result?.task === "string") parts.push(el("p", {}, "The server runs this as the task ", el("code", {}, shortName(result.task, 200)), "."));
  if (!parts.length) parts.push(el("p", { className: "faint" }, "The result is empty."));
  return el("div", { className: "result" }, ...parts, folded("As JSON", result));
}

const several = (content) => (Array.isArray(content) ? content.slice(0, MOST_BLOCKS) : [content]);

/** Whether a text block only repeats the structured content. */
function repeats(block, structured) {
  if (block?.type !== "text" || typeof block.text !== "string") return false;
  try {
    return JSON.stringify(JSON.parse(block.text)) === JSON.stringify(structured);
  } catch {
    return false;
  }
}

export function blockElement(block, read = null) {
  if (block?.type === "text" && typeof block.text === "string") return longText(block.text);
  const isMedia = ["image", "audio"].includes(block?.type) && typeof block.data === "string" && typeof block.mimeType === "string";
  if (isMedia) return mediaElement(block.data, block.mimeType);
  if (block?.type === "resource" && typeof block.resource?.uri === "string") return el("div", {}, el("h4", {}, shortName(block.resource?.uri, 300)), resourceElement(block.resource));
  if (block?.type === "resource_link" && typeof block.uri === "string") {
    const words = `${shortName(block.title ?? block.name)} `;
    return el("p", {}, words, el("code", {}, shortName(block.uri, 300)), " ", read && button("Read", () => read(block.uri), "plain"));
  }
  return json(block);
}

function resourceElement(contents) {
  if (typeof contents?.text === "string") return longText(contents.text);
  if (typeof contents?.blob === "string") return mediaElement(contents.blob, contents.mimeType);
  return json(contents);
}

/** An image or audio element for received bytes. Any other kind is only described, and never opened. */
function mediaElement(data, kind) {
  let bytes;
  try {
    bytes = Uint8Array.from(atob(data), (sign) => sign.charCodeAt(0));
  } catch {
    return el("p", { className: "bad" }, "The data of this block is not valid base64.");
  }
  const told = el("p", { className: "faint" }, `${shortName(kind ?? "bytes", 80)}, ${size(bytes.length)}`);
  if (!PICTURES.has(kind) && !SOUNDS.test(kind)) return told;
  const shown = PICTURES.has(kind) ? el("img", { alt: `an image from the server, ${kind}` }) : el("audio", { controls: true });
  shown.addEventListener("error", () => told.append(", which cannot be shown"));
  const address = URL.createObjectURL(new Blob([bytes], { type: kind }));
  owners.register(shown, address);
  shown.src = address;
  return el("div", { className: "media" }, shown, told);
}

// The bytes are released together with the element that shows them.
const owners = new FinalizationRegistry((address) => URL.revokeObjectURL(address));
