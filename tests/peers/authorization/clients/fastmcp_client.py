"""The client of the ``fastmcp`` package with OAuth, telling what it saw.

python fastmcp_client.py legacy|modern URL
"""

import sys
import threading
import time
import webbrowser
from functools import partial
from urllib.error import URLError
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

import anyio
from browser import sign_in
from fastmcp import Client
from fastmcp.client.auth import OAuth
from report import Report

report = Report()
visits: list[dict[str, str]] = []


class Presses(webbrowser.BaseBrowser):
    """The browser of a user who presses the button. It opens pages beside whoever asked for them."""

    def open(self, url: str, new: int = 0, autoraise: bool = True) -> bool:
        query = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        visits.append(query)
        threading.Thread(target=self.press, args=(url, query["redirect_uri"])).start()
        return True

    def press(self, url: str, redirect_uri: str) -> None:
        callback = sign_in(url, redirect_uri)
        while True:
            # The package opens the page before it listens, and this user is fast.
            try:
                with urlopen(callback) as page:
                    page.read()
                return
            except URLError:
                time.sleep(0.05)


webbrowser.register("presses", None, Presses(), preferred=True)


async def main(era: str, url: str) -> None:
    auth = OAuth(client_name="fastmcp", callback_host="127.0.0.1")

    async def call(tool: str):
        return (await client.call_tool(tool)).structured_content

    async with Client(url, auth=auth, mode={"legacy": "legacy", "modern": "auto"}[era]) as client:
        await report.step("whoami", call, "whoami")
        await report.step("write", call, "write")
        await report.step("whoami again", call, "whoami")
    report.tell("asked for", saw=[[visit.get("resource"), visit.get("scope")] for visit in visits])


anyio.run(partial(main, *sys.argv[1:]))
