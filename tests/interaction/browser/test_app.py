"""The view of an app in the sandboxed frame of a host shows the result of its tool, and calls tools through the host
(examples/stock.py)."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import trio
from examples.stock import stock_server
from tests.interaction.browser.chromium import Heard, answer_http, browsing, needs_chromium
from tests.interaction.websocket.raw_peer import port_of, serving
from tests.patience import PATIENCE

from trio_mcp import AppPolicy, Apps, MCPError, gateway
from trio_mcp.hosting import Group, MemberDescription, open_group
from trio_mcp.protocol.converters import unstructure
from trio_mcp.protocol.revisions import LATEST_MODERN
from trio_mcp.types import TextResourceContents

HOST = Path(__file__).with_name("app_host.html").read_bytes()
USER = Path(__file__).with_name("app_user.html").read_text()

pytestmark = needs_chromium

ROWS = [["Apples", 42, False, True], ["Bread", 7, True, True], ["Cheese", 18, False, True], ["Dates", 3, True, True]]


class HostBackend:
    """The part of a host that is no page: ``group`` has one member, ``member``, whose view is shown."""

    def __init__(self, group: Group, member: str, user: str = USER, theme: str = "light") -> None:
        self.group, self.member, self.user, self.theme = group, member, user, theme
        self.asked: list[str] = []

    async def answer(self, path: str, given: Any) -> tuple[dict[str, str], bytes]:
        """What the page gets at ``path``."""
        self.asked.append(path)
        (entry,) = [each for each in self.group.catalogue.tools.values() if each.for_model]
        match path:
            case "/view":
                assert entry.view is not None
                (contents,) = (await self.group.read_resource(entry.view)).contents
                assert isinstance(contents, TextResourceContents)
                policy = AppPolicy.of(contents).content_security_policy
                return {"Content-Security-Policy": policy}, (contents.text + self.user).encode()
            case "/called":
                result = await self.group.call_tool(entry.name)
                shown = {"tool": unstructure(entry.item, LATEST_MODERN), "result": unstructure(result, LATEST_MODERN)}
                return {}, json.dumps({**shown, "theme": self.theme}).encode()
            case "/call":
                return {}, json.dumps(await self.call(**given)).encode()
            case _:
                return {}, b""

    async def call(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """The answer to a call of the view."""
        try:
            result = await self.group.call_from_app(self.member, name, arguments)
        except MCPError as error:
            return {"error": {"code": -32000, "message": str(error)}}
        return {"result": unstructure(result, LATEST_MODERN)}


async def shown_in(backend: HostBackend, profile: Path) -> dict[str, Any]:
    """What the user saw in the view."""
    reports = Heard()
    with trio.fail_after(PATIENCE):
        answer = partial(answer_http, HOST, reports, more=backend.answer)
        async with (
            serving(trio.serve_tcp, answer, 0, host="127.0.0.1") as pages,
            browsing(f"http://127.0.0.1:{port_of(pages)}/", profile),
        ):
            return await reports.wait_for(last=True)


async def test_app_view_shows_tool_result_and_calls_tool_hidden_from_model(tmp_path: Path) -> None:
    async with open_group({"shop": MemberDescription(stock_server())}, extensions=[Apps()]) as group:
        await group.settled()
        assert [name for name, tool in group.catalogue.tools.items() if tool.for_model] == ["shop__stock"]
        backend = HostBackend(group, "shop")
        seen = await shown_in(backend, tmp_path)
    assert seen["shown"] == {"rows": ROWS, "state": "Low: 2 of 4 items.", "scheme": "light"}
    assert seen["ordered"]["rows"] == [ROWS[0], ["Bread", 17, False, True], *ROWS[2:]]
    assert seen["ordered"]["state"] == "Low: 1 of 4 items."
    # The frame is sandboxed, and the content security policy of the view blocks all connections.
    assert (seen["blocked"], seen["outer"], seen["origin"], seen["inner"]) == (True, "none", "null", "null")
    assert "/escaped" not in backend.asked


async def test_app_view_behind_a_gateway_calls_tools_by_their_names_without_the_gateway_prefix(tmp_path: Path) -> None:
    async with open_group({"shop": MemberDescription(stock_server())}) as behind:
        await behind.settled()
        async with open_group({"all": MemberDescription(gateway(behind))}, extensions=[Apps()]) as group:
            await group.settled()
            seen = await shown_in(HostBackend(group, "all"), tmp_path)
    assert seen["shown"]["rows"] == ROWS
    assert seen["ordered"]["state"] == "Low: 1 of 4 items."
