"""The page of ``trio-mcp inspect --web`` in Chromium, as its user meets it."""

from __future__ import annotations

import struct
import sys
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest
import trio
from tests.hosting.members import Scripted
from tests.interaction.browser.chromium import needs_chromium
from tests.interaction.client.raw import RawPeer
from tests.page.devtools import Browser, Page
from tests.page.inspected import chosen, inspected

from trio_mcp import Address, Audio, Command, Image, RequestContext, Server, serve_http
from trio_mcp.types import TextContent

pytestmark = needs_chromium

HOSTILE = "<img src=x onerror=alert(1)>"
HOSTILE_SERVER = Path(__file__).with_name("hostile_server.py")
eras = pytest.mark.parametrize("era", ["modern", "legacy"])


@dataclass
class Pot:
    size: int
    colour: Literal["red", "green"] = "red"


async def test_inspector_form_with_every_kind_of_field_calls_the_tool(browser: Browser) -> None:
    server, called = Server("garden"), list[Any]()

    @server.tool
    async def plant(
        name: Annotated[str, msgspec.Meta(description="Latin or not")],
        count: int,
        pot: Pot,
        pots: list[Pot],
        tags: list[Literal["old", "new"]],
        water: bool,
        height: float | None = None,
        extra: dict[str, int] | None = None,
    ) -> dict[str, Any]:
        """Plant something."""
        called.append((name, count, pot, pots, tags, water, height, extra))
        return {"planted": count}

    async with inspected(browser, server) as page:
        await chosen(page, "plant")
        await page.click("#detail button.main")
        await page.shows("#detail .bad", "count: a number is needed")
        await page.type("[name=name]", "Rosa\ncanina")
        await page.type("[name=count]", "3")
        await page.type("[name='pot.size']", "7")
        await page.click(".row .array button", "Add one")
        await page.type("[name='pots[0].size']", "8")
        await page.run("one('[name=\"pots[0].colour\"]').selectedIndex = 1")
        await page.click(".boxes .box", "new")
        await page.click("[name=water]")
        await page.type("[name=height]", "1.5")
        await page.type("[name=extra]", '{"a": 1}')
        await page.click("#detail button.main")
        result = await page.shows(".card .json", "planted")
    other = {"red": "green", "green": "red"}
    ((*first, pots, tags, water, height, extra),) = called
    assert first == ["Rosa\ncanina", 3, Pot(7)]
    assert [pot.size for pot in pots] == [8]
    assert pots[0].colour in other
    assert (tags, water, height, extra) == (["new"], True, 1.5, {"a": 1})
    assert result == '{\n  "planted": 3\n}'


async def test_tool_arguments_on_the_inspector_page_can_be_edited_as_json_and_as_a_form(browser: Browser) -> None:
    server = Server("garden")

    @server.tool
    async def add(a: int, b: int) -> int:
        return a + b

    async with inspected(browser, server) as page:
        await chosen(page, "add")
        await page.type("[name=a]", "1")
        await page.type("[name=b]", "2")
        await page.click("#detail button", "Edit as JSON")
        await page.type("#detail textarea.code", '{"a": 40, "b": 2}')
        await page.click("#detail button", "Edit as a form")
        assert await page.run("one('[name=a]').value") == "40"
        await page.click("#detail button.main")
        assert "42" in await page.shows(".card .result")
        await page.click(".card summary", "As JSON")
        assert "structuredContent" in await page.shows(".card .raw .json", "42")
        await page.click("#detail summary", "Raw definition")
        await page.shows("#detail .raw .json", "inputSchema")


@eras
async def test_cancel_button_of_the_inspector_page_stops_a_handler_whose_progress_and_logs_are_shown(
    browser: Browser, era: str
) -> None:
    server, ended, causes = Server("garden"), trio.Event(), list[Any]()

    @server.tool
    async def grow(ctx: RequestContext) -> None:
        await ctx.log.warning("it grows")
        ctx.progress(2, total=4, message="half way")
        try:
            await trio.sleep_forever()
        finally:
            causes.append(ctx.cancellation)
            ended.set()

    async with inspected(browser, server, era) as page:
        await chosen(page, "grow")
        await page.click("#detail button.main")
        await page.shows(".news", "2 of 4: half way")
        assert await page.run("[one('progress').value, one('progress').max]") == [2, 4]
        await page.click("#tabs button", "Logs")
        assert "warning" in await page.shows(".line", "it grows")
        await page.click(".card button", "Cancel call")
        await ended.wait()
        await page.shows(".card .status", "cancelled")
    assert causes[0].reason == "cancelled in the page"


@dataclass
class Who:
    name: str
    size: Literal["small", "large"]
    married: bool = False
    age: int = 30


@eras
async def test_inspector_page_answers_elicitation_sampling_and_roots_requests(browser: Browser, era: str) -> None:
    server = Server("garden")

    @server.tool
    async def form(ctx: RequestContext) -> str:
        return str((await ctx.elicit(f"Who {HOSTILE}?", Who)).content)

    @server.tool
    async def url(ctx: RequestContext) -> str:
        return (await ctx.elicit_url("Pay.", "https://example.com/pay", "e1")).action

    @server.tool
    async def model(ctx: RequestContext) -> str:
        made = await ctx.sample("Say something.", max_tokens=10, system_prompt="Be kind.")
        assert isinstance(made.content, TextContent)
        return made.content.text

    @server.tool
    async def roots(ctx: RequestContext) -> str:
        return ", ".join(f"{root.uri} {root.name}" for root in await ctx.list_roots())

    async with inspected(browser, server, era) as page:
        await chosen(page, "form")
        await page.click("#detail button.main")
        await page.shows(".card .question .message", HOSTILE)  # the card of the call that asks
        await page.type(".question [name=name]", "Ann")
        await page.click(".question button", "Send")
        await page.shows(".question .bad", "size: choose one")
        await page.run("one('.question [name=size]').selectedIndex = 1")
        await page.click(".question button", "Send")
        assert "'name': 'Ann'" in await page.shows(".card .result", "'age': 30")
        assert await page.count(".question") == 0

        await chosen(page, "url")
        await page.click("#detail button.main")
        assert await page.shows(".question .host") == "example.com"
        await page.click(".question button", "Decline")
        await page.shows(".card .result", "decline")

        await chosen(page, "model")
        await page.click("#detail button.main")
        await page.shows(".question .turn", "Be kind.")
        await page.shows(".question .turn", "Say something.")
        await page.type(".question [name=text]", "Something.")
        await page.click(".question button", "Send")
        await page.shows(".card .result", "Something.")

        await chosen(page, "roots")
        await page.click("#detail button.main")
        await page.type(".question [name=roots]", "file:///garden My garden")
        await page.click(".question button", "Send")
        await page.shows(".card .result", "file:///garden My garden")


def png() -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 2, 3, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"\0" * 21)) + chunk(b"IEND", b"")


def wave() -> bytes:
    return (
        b"RIFF"
        + struct.pack("<I4s4sIHHIIHH4sI", 44, b"WAVE", b"fmt ", 16, 1, 1, 8000, 8000, 1, 8, b"data", 8)
        + b"\x80" * 8
    )


async def test_inspector_page_displays_only_safe_image_and_audio_types(browser: Browser) -> None:
    server = Server("garden")
    svg = b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>"

    @server.tool
    async def media() -> list[Image | Audio]:
        return [
            Image(png(), "image/png"),
            Audio(wave(), "audio/wav"),
            Image(svg, "image/svg+xml"),
            Image(b"?", "image/x-page"),
        ]

    async with inspected(browser, server) as page:
        await chosen(page, "media")
        await page.click("#detail button.main")
        await page.run("until(() => document.querySelector('.media img')?.naturalWidth === 2)")
        await page.run("until(() => document.querySelector('.media audio')?.duration > 0)")
        assert await page.count(".card img, .card audio, .card iframe, .card object") == 2
        await page.shows(".card .faint", "image/svg+xml")
        await page.shows(".card .faint", "image/x-page")


async def test_inspector_page_escapes_malicious_server_text_everywhere(browser: Browser) -> None:
    async with inspected(browser, Command([sys.executable, str(HOSTILE_SERVER)]), "legacy") as page:
        await page.shows("h1", HOSTILE)
        await chosen_first(page)
        await page.shows("#detail .message", HOSTILE)
        # References without an end and names of any type leave the form as it is.
        for name in ("percent", "percent here", "names", "one", "format"):
            assert await page.count(f'[name="{name}"]') == 1, name
        await page.run("one('[name=a]').selectedIndex = 1")
        await page.click("#detail button.main")
        shown = await page.shows(".card .result", HOSTILE)
        assert "adm\\u202eni" in shown
        await page.shows(".card .news", HOSTILE)
        await page.click(".card button", "Timeline")
        await page.run("until(() => document.querySelector('.card .timeline')?.naturalWidth)")
        await page.click(".offer", "odd")
        await page.type("#detail textarea.code", '{"x": [1]}')
        await page.click("#detail button.main")
        await page.shows(".card .given", '{"x":[1]}')
        await page.click("#more summary")
        await page.shows("#facts", HOSTILE)
        await page.click("#tabs button", "Resources")
        await chosen_first(page)
        await page.click("#detail button.main")
        await page.click("#tabs button", "Prompts")
        await chosen_first(page)
        await page.type("#detail textarea", HOSTILE)
        await page.click("#detail button.main")
        await page.run("until(() => document.querySelectorAll('.card[data-status=done]').length === 4)")
        await page.click("#tabs button", "Logs")
        await page.shows(".line", HOSTILE)
        await page.click("#tabs button", "Messages")
        await page.click(".frame.result")
        await page.shows("#detail .json")
        assert await page.count("img[src=x], body script, a[href^=javascript], b:not(.needed)") == 0


async def chosen_first(page: Page) -> None:
    await page.click("#list .offer")
    await page.shows("#detail h2", HOSTILE)


async def test_inspector_page_shows_a_listing_problem_above_the_listed_items(browser: Browser) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        while True:
            page = {"tools": [{"name": "good", "inputSchema": {"type": "object"}}], "nextCursor": "again"}
            await peer.result(await peer.until("tools/list"), page)

    async with inspected(browser, Scripted(script), "legacy") as page:
        await page.shows("#note", "Problem in the list: the server repeats a cursor, so the list never ends.")
        assert await page.count(".offer") == 1


async def test_inspector_page_warns_if_a_result_does_not_match_its_output_schema(browser: Browser) -> None:
    async def script(peer: RawPeer) -> None:
        await peer.handshake()
        tool = {"name": "t", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object", "required": ["n"]}}
        await peer.result(await peer.until("tools/list"), {"tools": [tool]})
        for content in ({HOSTILE: 1}, {"n": 1}):
            block = {"type": "text", "text": "words"}
            await peer.result(await peer.until("tools/call"), {"content": [block], "structuredContent": content})

    async with inspected(browser, Scripted(script), "legacy") as page:
        await chosen(page, "t")
        await page.click("#detail button.main")
        fault = await page.shows(".card .bad", "The result doesn't fit the output schema")
        assert '"n" is a required property' in fault
        assert "words" in await page.shows(".card .result")
        await page.click("#detail button.main")
        await page.shows(".card .json", '"n": 1')
        assert await page.run("[...document.querySelectorAll('.card .bad')].map(each => each.hidden)") == [True, False]


async def test_inspector_page_filters_five_hundred_tools(browser: Browser) -> None:
    server = Server("many")
    for number in range(500):
        server.tool(name=f"tool_{number:03}", description=f"Number {number} of many." + " And more." * 50)(
            _named(number)
        )

    async with inspected(browser, server, width=390, height=844) as page:
        await page.shows("#note", "The first 400 of 500")
        assert await page.count(".offer") == 400
        assert await page.run("document.documentElement.scrollWidth <= innerWidth")
        await page.type("#filter", "tool_49")
        await page.run("until(() => document.querySelectorAll('.offer').length === 10)")
        await chosen(page, "tool_497")
        await page.click("#detail button.main")
        await page.shows(".card .result", "497")


def _named(number: int) -> Any:
    async def tool() -> str:
        return str(number)

    return tool


async def test_inspector_page_reads_resources_and_prompts_with_completion(browser: Browser) -> None:
    server = Server("garden")

    @server.resource("garden://bed/{row}/{plant}")
    async def bed(row: str, plant: str) -> str:
        return f"{plant} in {row}"

    @server.prompt
    async def praise(plant: str, tone: str = "warm") -> str:
        return f"praise the {plant}, {tone}"

    @server.completion(prompt="praise", argument="plant")
    async def plants(value: str) -> list[str]:
        return [each for each in ("rose", "rosemary", "tulip") if each.startswith(value)]

    async with inspected(browser, server) as page:
        await page.click("#tabs button", "Templates")
        await chosen(page, "bed")
        await page.type("[name=row]", "a b")
        await page.type("[name=plant]", "rose&")
        await page.click("#detail button.main")
        await page.shows(".card .name", "garden://bed/a%20b/rose%26")
        await page.shows(".card .result", "rose& in a b")
        await page.click("#tabs button", "Prompts")
        await chosen(page, "praise")
        await page.type("input[name=plant]", "ro")
        await page.run("until(() => document.querySelectorAll('datalist option').length === 2)")
        await page.click("#detail button.main")
        await page.shows(".card .result", "praise the ro, warm")


async def test_inspector_page_updates_the_timeline_while_a_call_runs(browser: Browser) -> None:
    server, ends = Server("garden"), trio.Event()

    @server.tool
    async def wait() -> str:
        await ends.wait()
        return "waited"

    async with inspected(browser, server) as page:
        await chosen(page, "wait")
        await page.click("#detail button.main")
        await page.click(".card button", "Timeline")
        await page.run("until(() => one('.card .timeline')?.naturalWidth)")
        await page.run("window.first = one('.card .timeline').src")
        await page.run("until(() => one('.card .timeline').src !== window.first)")  # while the call runs
        await page.click("#tabs button", "Messages")
        await page.run("until(() => one('#detail .timeline')?.naturalWidth)")
        await page.run("window.first = one('#detail .timeline').src")
        ends.set()
        await page.run("until(() => one('#detail .timeline').src !== window.first)")  # for the result
        picture = await page.run("fetch(one('#detail .timeline').src).then((response) => response.text())")
        assert "wait #" in picture


async def test_inspector_page_lists_messages_with_secrets_masked(browser: Browser) -> None:
    server = Server("garden")

    @server.tool
    async def sign(password: str) -> str:
        return "signed"

    async with inspected(browser, server) as page:
        await chosen(page, "sign")
        await page.type("[name=password]", "hunter2")
        await page.click("#detail button.main")
        await page.shows(".card .result", "signed")
        await page.click("#tabs button", "Messages")
        await page.run("until(() => document.querySelector('#detail .timeline')?.naturalWidth)")
        await page.click(".frame.request", "tools/call")
        shown = await page.shows("#detail .json", "masked:")
        await page.run("one('.frame').id = 'old'")
        await page.click("#refresh")
        await page.run("until(() => !document.getElementById('old'))")
        assert "tools/call" in await page.shows(".frame[aria-current]")
        assert '"name": "sign"' in shown
        assert "hunter2" not in shown


async def test_inspector_page_reconnects_to_an_http_server(browser: Browser) -> None:
    server = Server("garden")

    @server.tool
    async def hello() -> str:
        return "hello"

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(
            lambda task_status: serve_http(server, port=0, handle_signals=False, task_status=task_status)
        )
        url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp"
        async with inspected(browser, Address(url)) as page:
            await page.shows("#state", "connected")
            await chosen(page, "hello")
            await page.click("#reconnect")
            await page.run("until(() => !one('#reconnect').disabled)")
            await page.click("#detail button.main")
            await page.shows(".card .result", "hello")
        nursery.cancel_scope.cancel()


async def test_inspector_page_without_its_token_shows_nothing(browser: Browser) -> None:
    async with inspected(browser, Server("garden")) as page:
        await page.shows("h1", "garden")
        address = await page.run("location.href")
        other = await browser.open("/".join(address.split("/")[:3]) + "/")
        assert "open the complete address" in await other.run("document.body.innerText")


async def test_each_tab_of_the_inspector_page_opens_without_a_selected_item(browser: Browser) -> None:
    server = Server("garden")

    @server.tool
    async def hello() -> str:
        return "hello"

    async with inspected(browser, server) as page:
        await chosen(page, "hello")
        for _ in range(2):
            await page.click("#tabs button", "Logs")
            await page.shows("#detail .label", "Lowest level")
            await page.click("#tabs button", "Messages")
            await page.shows("#detail h2", "Timeline")
            await page.click("#tabs button", "Tools")
            await page.shows("#detail", "Select an item.")
            await page.shows(".offer", "hello")
            assert await page.count("[aria-current]") == 0


async def test_log_level_on_the_inspector_page_is_reset_when_it_reconnects(browser: Browser) -> None:
    async with inspected(browser, Server("garden")) as page:
        await page.shows("#state", "connected")
        await page.click("#tabs button", "Logs")
        await page.type("#detail select", "debug")
        await page.click("#reconnect")
        await page.run("until(() => !one('#reconnect').disabled && one('#detail select')?.value === 'info')")
