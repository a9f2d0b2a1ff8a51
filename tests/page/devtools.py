"""Chromium, driven over its DevTools protocol: pages, what is typed and clicked there, what is seen, pictures of it."""

from __future__ import annotations

import base64
import json
import os
import re
import signal
import subprocess
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import trio
from tests.interaction.browser.chromium import CHROMIUM, OPTIONS
from trio_websocket import ConnectionClosed, WebSocketConnection, open_websocket_url

__all__ = ["Browser", "Page", "chromium", "open_browser"]

HELPERS = """
window.seen = [];
window.until = (test, limit = 60000) => new Promise((resolve, reject) => {
  const begun = performance.now();
  const look = () => {
    let found;
    try { found = test(); } catch (error) { return reject(error); }
    if (found) resolve(found);
    else if (performance.now() - begun > limit) {
      reject(new Error(`never: ${test}\\n${document.body.innerText.slice(0, 3000)}`));
    } else setTimeout(look, 10);
  };
  look();
});
window.one = (selector, words = "") =>
  [...document.querySelectorAll(selector)].find((each) => each.textContent.includes(words) && each.checkVisibility());
window.click = (selector, words = "") => until(() => {
  const found = one(selector, words);
  found?.click();
  return Boolean(found);
});
window.type = (selector, text) => until(() => {
  const found = one(selector);
  if (!found) return false;
  found.value = text;
  found.dispatchEvent(new Event("input", { bubbles: true }));
  found.dispatchEvent(new Event("change", { bubbles: true }));
  return true;
});
addEventListener("securitypolicyviolation", (event) => seen.push(`policy: ${event.violatedDirective}`));
addEventListener("error", (event) => seen.push(`error: ${event.message}`));
addEventListener("unhandledrejection", (event) => seen.push(`rejection: ${event.reason}`));
window.alert = (words) => seen.push(`alert: ${words}`);
"""


class Browser:
    """A running Chromium."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self._socket = socket
        self._ids = count(1)
        self._answers: dict[int, trio.MemorySendChannel[dict[str, Any]]] = {}
        self._targets: list[str] = []

    async def read(self) -> None:
        while True:
            try:
                message = json.loads(await self._socket.get_message())
            except ConnectionClosed:
                return
            if (waiting := self._answers.pop(message.get("id"), None)) is not None:
                waiting.send_nowait(message)

    async def command(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._answers[number], answer = trio.open_memory_channel[dict[str, Any]](1)
        whole = {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        await self._socket.send_message(json.dumps(whole))
        message = await answer.receive()
        assert "error" not in message, message["error"]
        return message["result"]

    async def open(self, url: str, *, width: int = 1280, height: int = 900, scheme: str = "light") -> Page:
        target = (await self.command("Target.createTarget", url="about:blank"))["targetId"]
        self._targets.append(target)
        session = (await self.command("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = Page(self, session)
        await self.command("Page.enable", session)
        await page.look_as(width, height, scheme)
        await self.command("Page.addScriptToEvaluateOnNewDocument", session, source=HELPERS)
        await self.command("Page.navigate", session, url=url)
        await page.run("until(() => document.readyState === 'complete')")
        return page

    async def close_pages(self) -> None:
        for target in self._targets:
            await self.command("Target.closeTarget", targetId=target)


class Page:
    def __init__(self, browser: Browser, session: str) -> None:
        self._browser = browser
        self._session = session

    async def look_as(self, width: int, height: int, scheme: str) -> None:
        command, session = self._browser.command, self._session
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        await command("Emulation.setDeviceMetricsOverride", session, **size)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        await command("Emulation.setEmulatedMedia", session, features=features)

    async def run(self, script: str) -> Any:
        """What ``script`` gives; a promise is waited for."""
        found = await self._browser.command(
            "Runtime.evaluate", self._session, expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"].get("exception", found)
        return found["result"].get("value")

    async def click(self, selector: str, words: str = "") -> None:
        await self.run(f"click({json.dumps(selector)}, {json.dumps(words)})")

    async def type(self, selector: str, text: str) -> None:
        await self.run(f"type({json.dumps(selector)}, {json.dumps(text)})")

    async def shows(self, selector: str, words: str = "") -> str:
        """The text of the first element that has ``words``, once there is one."""
        return await self.run(f"until(() => one({json.dumps(selector)}, {json.dumps(words)})?.innerText || '')")

    async def count(self, selector: str) -> int:
        return await self.run(f"document.querySelectorAll({json.dumps(selector)}).length")

    async def seen(self) -> list[str]:
        """Violations of the policy of the page, errors of its scripts, and alerts."""
        return await self.run("seen")

    async def picture(self, path: Path) -> None:
        data = await self._browser.command("Page.captureScreenshot", self._session, format="png")
        await trio.Path(path).write_bytes(base64.b64decode(data["data"]))


@contextmanager
def chromium(profile: Path) -> Iterator[str]:
    """Chromium, which listens at the given address, and is gone afterwards with all its processes."""
    command = [str(CHROMIUM), *OPTIONS, "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE, start_new_session=True)
    assert process.stderr is not None
    try:
        said = b""
        while (found := re.search(rb"DevTools listening on (ws://\S+)", said)) is None:
            line = process.stderr.readline()
            assert line, said
            said += line
        reading = threading.Thread(target=process.stderr.read)  # nobody waits for a reader of what it says later
        reading.start()
        try:
            yield found[1].decode()
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            reading.join()
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


@asynccontextmanager
async def open_browser(address: str) -> AsyncIterator[Browser]:
    """A connection to the Chromium at ``address``. The pages that are opened by it are closed in the end."""
    async with open_websocket_url(address, max_message_size=2**26) as socket, trio.open_nursery() as nursery:
        browser = Browser(socket)
        nursery.start_soon(browser.read)
        yield browser
        await browser.close_pages()
        nursery.cancel_scope.cancel(reason="the browser is left")
