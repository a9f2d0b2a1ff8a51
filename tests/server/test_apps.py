"""Tools with views: what is declared, what the list and the contents say, and what an author may not say (SEP-1865)."""

from __future__ import annotations

import logging
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trio_mcp import UI, AppPolicy, Apps, Client, PeerError, RequestContext, Server, open_memory
from trio_mcp.protocol.types.apps import with_view_renamed
from trio_mcp.types import (
    BlobResourceContents,
    CallToolResult,
    Extension,
    ReadResourceResult,
    TextResourceContents,
    Tool,
)

Era = Literal["modern", "legacy"]

NAME, TYPE, VIEW = "io.modelcontextprotocol/ui", "text/html;profile=mcp-app", "ui://w/dash"
PAGE = "<!DOCTYPE html><title>Dashboard</title>"


@pytest.fixture(params=["modern", "legacy"])
def era(request: pytest.FixtureRequest) -> Era:
    return request.param


def dashboard(policy: AppPolicy | None = None) -> Server:
    server = Server("w", extensions=[Apps()])

    @server.tool(ui=UI(VIEW))
    async def show() -> str:
        return "shown"

    @server.tool(ui=UI(VIEW, visible_to=("app",)), meta={"com.example/k": 1})
    async def refresh() -> str:
        return "fresh"

    @server.resource(VIEW, app=policy or AppPolicy())
    async def page() -> str:
        return PAGE

    return server


async def read(client: Client, uri: str = VIEW) -> Any:
    (contents,) = (await client.read_resource(uri)).contents
    return contents


async def test_apps_extension_is_declared_and_visible_to_server_and_client(era: Era) -> None:
    server, apps, seen = dashboard(), Apps(), []

    @server.tool
    async def look(ctx: RequestContext) -> str:
        seen.append(ctx.client_extension(apps))
        return "seen"

    async with open_memory(server, era=era, extensions=[apps]) as client:
        assert (client.server_capabilities.extensions or {})[NAME] == {}
        assert client.server_extension(apps) == {}
        assert (client.capabilities.extensions or {})[NAME] == {"mimeTypes": [TYPE]}
        await client.call_tool("look")
    async with open_memory(server, era=era) as client:
        assert NAME not in (client.capabilities.extensions or {})
        await client.call_tool("look")
    assert seen[0].mime_types == [TYPE]
    assert seen[1] is None


async def test_server_treats_the_apps_extension_as_undeclared_if_the_client_sends_no_mime_types() -> None:
    class Untyped(Extension[dict[str, Any], dict[str, Any]]):
        __module__ = "trio_mcp.like_it"

    apps, seen, server = Apps(), [], Server("w", extensions=[Apps()])

    @server.tool
    async def look(ctx: RequestContext) -> str:
        seen.append(ctx.client_extension(apps))
        return "seen"

    async with open_memory(server, extensions=[Untyped(NAME)]) as client:
        await client.call_tool("look")
    assert seen == [None]


async def test_tools_list_contains_the_view_uri_and_visibility_of_a_tool(era: Era) -> None:
    async with open_memory(dashboard(), era=era) as client:
        listed = {tool.name: tool.meta async for tool in client.list_tools()}
        assert listed == {
            "show": {"ui": {"resourceUri": VIEW}},
            "refresh": {"ui": {"resourceUri": VIEW, "visibility": ["app"]}, "com.example/k": 1},
        }
        assert (await client.call_tool("refresh")).text == "fresh"  # servers filter nothing


async def test_app_view_contents_have_the_app_mime_type_and_content_security_policy(era: Era) -> None:
    policy = AppPolicy(
        connect=["https://api.example.com", "wss://*.example.com:8443"],
        resources=["https://cdn.example.com"],
        frames=["https://video.example.com"],
        base_uris=["https://base.example.com"],
        permissions=["camera", "microphone", "geolocation", "clipboard_write"],
        domain="w.example.com",
        prefers_border=False,
    )
    async with open_memory(dashboard(policy), era=era) as client:
        (listed,) = [each async for each in client.list_resources()]
        contents = await read(client)
    assert (listed.mime_type, listed.meta) == (TYPE, None)
    assert (contents.mime_type, contents.text) == (TYPE, PAGE)
    assert contents.meta == {
        "ui": {
            "csp": {
                "connectDomains": ["https://api.example.com", "wss://*.example.com:8443"],
                "resourceDomains": ["https://cdn.example.com"],
                "frameDomains": ["https://video.example.com"],
                "baseUriDomains": ["https://base.example.com"],
            },
            "permissions": {"camera": {}, "microphone": {}, "geolocation": {}, "clipboardWrite": {}},
            "domain": "w.example.com",
            "prefersBorder": False,
        }
    }
    assert AppPolicy.of(contents) == policy


async def test_app_view_without_an_app_policy_has_no_meta(era: Era) -> None:
    async with open_memory(dashboard(), era=era) as client:
        assert (await read(client)).meta is None


@pytest.mark.parametrize("form", ["bytes", "contents", "result"])
async def test_app_view_function_can_return_bytes_contents_or_a_read_result(form: str) -> None:
    server = Server("w", extensions=[Apps()])

    @server.resource("ui://w/{name}", app=AppPolicy(prefers_border=True))
    async def page(name: str) -> Any:
        own = TextResourceContents("ui://w/own", PAGE, meta={"com.example/k": 1})
        return {"bytes": PAGE.encode(), "contents": [own], "result": ReadResourceResult([own])}[form]

    async with open_memory(server) as client:
        contents = await read(client)
    assert contents.mime_type == TYPE
    assert contents.meta["ui"] == {"prefersBorder": True}
    assert isinstance(contents, BlobResourceContents) or contents.meta["com.example/k"] == 1


async def test_meta_of_the_contents_returned_by_an_app_view_overrides_the_app_policy() -> None:
    server = Server("w", extensions=[Apps()])

    @server.resource(VIEW, app=AppPolicy(prefers_border=True))
    async def page() -> TextResourceContents:
        return TextResourceContents(VIEW, PAGE, meta={"ui": {"domain": "w.example.com"}})

    async with open_memory(server) as client:
        assert (await read(client)).meta == {"ui": {"domain": "w.example.com"}}


@pytest.mark.parametrize(
    "page",
    [PAGE, "<!doctype HTML>", f"\ufeff \n{PAGE}", f"<!-- made by -->\n<!-- us -->{PAGE}"],
)
def test_string_with_an_html_document_is_accepted_as_an_app_view(page: str) -> None:
    assert AppPolicy()._on(TextResourceContents(VIEW, page)).mime_type == TYPE


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("<p>hello", "begins with <!doctype html>"),
        ({"a": 1}, "begins with <!doctype html>"),
        (TextResourceContents(VIEW, PAGE, "text/html"), "have the MIME type text/html;profile=mcp-app"),
    ],
)
async def test_app_view_function_that_does_not_return_html_causes_a_server_error(
    value: Any, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = Server("w", extensions=[Apps()])
    server.resource(VIEW, app=AppPolicy())(lambda: value)
    async with open_memory(server) as client:
        with caplog.at_level(logging.ERROR), pytest.raises(PeerError, match="Internal error") as caught:
            await read(client)
    assert caught.value.code == -32603
    assert words in caplog.text


@pytest.mark.parametrize("schema", [None, {"type": "object"}])
async def test_tool_with_an_app_view_returns_text_content_to_hosts_without_apps(schema: dict[str, Any] | None) -> None:
    server = dashboard()

    @server.tool(ui=UI(VIEW), output_schema=schema)
    async def empty() -> CallToolResult:
        return CallToolResult([], structured_content={"a": 1})

    @server.tool(ui=UI(visible_to=("app",)))
    async def press() -> None: ...

    async with open_memory(server) as client:
        refused = await client.call_tool("empty")
        assert refused.is_error
        assert refused.text == "empty has a view, but returned no content for other hosts"
        assert (await client.call_tool("press")).content == []  # it has none of its own


# What an author may not say


def test_registering_an_app_view_without_the_apps_extension_raises() -> None:
    server = Server("w")
    with pytest.raises(ValueError, match=r"extensions=\[Apps\(\)\]"):
        server.tool(ui=UI(VIEW))(lambda: "a")
    with pytest.raises(ValueError, match=r"extensions=\[Apps\(\)\]"):
        server.resource(VIEW, app=AppPolicy())(lambda: PAGE)


@pytest.mark.parametrize("uri", ["w/dash", "https://example.com", "ui://", "ui:/w"])
def test_app_view_uri_without_the_ui_scheme_raises_at_registration(uri: str) -> None:
    with pytest.raises(ValueError, match="must begin with ui://"):
        UI(uri)
    with pytest.raises(ValueError, match=r"must begin with ui://|is not a URI"):
        dashboard().resource(uri, app=AppPolicy())(lambda: PAGE)


def test_app_view_whose_mime_type_is_not_the_mime_type_of_apps_raises_at_registration() -> None:
    server = dashboard()
    server.resource("ui://w/same", app=AppPolicy(), mime_type=TYPE)(lambda: PAGE)
    with pytest.raises(ValueError, match="leave out mime_type="):
        server.resource("ui://w/other", app=AppPolicy(), mime_type="text/html")(lambda: PAGE)


@pytest.mark.parametrize("callers", ["app", ("user",)])
def test_unknown_tool_visibility_raises_at_registration(callers: Any) -> None:
    with pytest.raises(ValueError, match="visible_to must contain"):
        UI(VIEW, visible_to=callers)


def test_tool_with_an_empty_ui_visibility_or_two_views_raises_at_registration() -> None:
    with pytest.raises(ValueError, match="visible_to must not be empty"):
        dashboard().tool(ui=UI(VIEW, visible_to=()), name="a")(lambda: "a")
    for meta in ({"ui": {}}, {"ui/resourceUri": VIEW}):
        with pytest.raises(ValueError, match="remove the view from meta"):
            dashboard().tool(ui=UI(VIEW), meta=meta, name="a")(lambda: "a")


@pytest.mark.parametrize(
    "origin", ["example.com", "https://a.example;script-src *", "https://a b", "'unsafe-eval'", "*", "https://a/p"]
)
def test_app_policy_with_an_origin_that_contains_a_content_security_directive_raises(origin: str) -> None:
    for name in ("connect", "resources", "frames", "base_uris"):
        with pytest.raises(ValueError, match="invalid origin"):
            AppPolicy(**{name: [origin]})  # type: ignore[arg-type]


def test_unknown_app_view_permission_raises_at_registration() -> None:
    with pytest.raises(ValueError, match="camera, microphone, geolocation, clipboard_write"):
        AppPolicy(permissions=["clipboardWrite"])


async def start(server: Server) -> None:
    async with server._running():
        pass


async def test_server_start_raises_if_the_view_of_a_tool_is_not_registered() -> None:
    await start(dashboard())
    server = dashboard()
    server.tool(ui=UI("ui://w/list"), name="list")(lambda: "listed")
    with pytest.raises(RuntimeError, match="the view of the tool list is ui://w/list, but there is no such resource"):
        await start(server)
    server.resource("ui://w/{name}", mime_type="text/html")(lambda name: PAGE)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=f"that resource is not {TYPE}"):
        await start(server)
    server.remove_resource("ui://w/{name}")
    server.resource("ui://w/{name}", app=AppPolicy())(lambda name: PAGE)  # type: ignore[arg-type]
    await start(server)


async def test_server_start_raises_if_a_view_uri_in_tool_meta_is_not_registered() -> None:
    server = Server("w", extensions=[Apps()])
    server.tool(meta={"ui": {"resourceUri": VIEW}}, name="a")(lambda: "a")
    with pytest.raises(RuntimeError, match="no such resource"):
        await start(server)


async def test_tools_of_a_mounted_server_keep_their_view_uris() -> None:
    whole = Server("all", extensions=[Apps()])
    whole.mount(dashboard(AppPolicy(prefers_border=True)), prefix="w")
    async with open_memory(whole) as client:
        listed = {tool.name: UI.of(tool).view async for tool in client.list_tools()}
        assert listed == {"w_show": VIEW, "w_refresh": VIEW}
        assert AppPolicy.of(await read(client)).prefers_border


# A server that lists two tools in the place of all


async def test_tools_visible_only_to_apps_are_listed_but_not_found_by_tool_search() -> None:
    server = dashboard()
    server.searchable()

    @server.tool(ui=UI(visible_to=("app",)), description="fresh rows")
    async def rows() -> str:
        return "rows"

    async with open_memory(server) as client:
        listed = [tool.name async for tool in client.list_tools()]
        assert listed == ["search_tools", "call_tool", "refresh", "rows"]
        for words in ("refresh", "rows", "fresh rows"):
            assert (await client.call_tool("search_tools", {"query": words})).text.startswith("No tool fits")
        assert (await client.call_tool("search_tools", {"query": "show"})).text.startswith("show(")
        assert (await client.call_tool("call_tool", {"name": "show"})).text == "shown"
        refused = await client.call_tool("call_tool", {"name": "refresh"})
        assert refused.is_error
        assert "there is no tool 'refresh'" in refused.text
        assert (await client.call_tool("refresh")).text == "fresh"
        server.remove_tool("rows")
        server.remove_tool("refresh")
        assert [tool.name async for tool in client.list_tools()] == ["search_tools", "call_tool"]


# What a host reads of a server, which may say anything


def said(meta: Any) -> UI:
    return UI.of(Tool("t", {"type": "object"}, meta=meta))


def test_client_reads_the_deprecated_view_uri_key_but_prefers_the_current_key() -> None:
    assert said({"ui/resourceUri": VIEW}) == UI(VIEW)
    assert said({"ui/resourceUri": "ui://w/old", "ui": {"resourceUri": VIEW}}).view == VIEW


@pytest.mark.parametrize(
    ("visibility", "callers"),
    [
        (None, ("model", "app")),
        (["app", "model"], ("model", "app")),
        (["app"], ("app",)),
        (["model", "user", 3, ["app"]], ("model",)),
        ([], ()),
        ("model", ()),
        ({"model": {}}, ()),
    ],
)
def test_tool_with_invalid_visibility_metadata_is_visible_to_no_caller(
    visibility: Any, callers: tuple[str, ...]
) -> None:
    assert said({"ui": {"visibility": visibility}}).visible_to == callers


@pytest.mark.parametrize("meta", [None, {}, {"ui": None}, {"ui": []}, {"ui": {"resourceUri": 3}}, {"ui": "ui://a/b"}])
def test_tool_without_a_view_has_no_view_uri(meta: Any) -> None:
    assert said(meta) == UI()


ANYTHING: Any = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.sampled_from([VIEW, "model", "app"]),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(
                ["ui", "ui/resourceUri", "resourceUri", "visibility", "csp", "connectDomains", "permissions"]
            ),
            inner,
        )
    ),
    max_leaves=12,
)


@given(ANYTHING)
def test_client_reads_invalid_app_metadata_from_a_server_without_an_exception(meta: Any) -> None:
    meta = meta if isinstance(meta, dict) else {"ui": meta}
    tool = Tool("t", {"type": "object"}, meta=meta)
    renamed = with_view_renamed(tool, lambda uri: f"{uri}!")
    view = UI.of(tool).view
    assert view is None or UI.of(renamed).view == f"{view}!"
    policy = AppPolicy.of(TextResourceContents(VIEW, PAGE, meta=meta)).content_security_policy
    assert policy.count(";") == 9


def test_app_policy_read_from_a_server_keeps_only_the_valid_origins() -> None:
    given = {
        "csp": {
            "connectDomains": ["https://api.example.com", "https://x;script-src *", 3],
            "resourceDomains": ["https://cdn.example.com"],
            "frameDomains": "https://all.example.com",
        },
        "permissions": {"camera": {}, "usb": {}},
        "domain": 3,
        "prefersBorder": "yes",
    }
    policy = AppPolicy.of(TextResourceContents(VIEW, PAGE, meta={"ui": given}))
    assert policy == AppPolicy(
        connect=["https://api.example.com"], resources=["https://cdn.example.com"], permissions=["camera"]
    )
    assert policy.content_security_policy == (
        "default-src 'none'; script-src 'self' 'unsafe-inline' https://cdn.example.com; "
        "style-src 'self' 'unsafe-inline' https://cdn.example.com; connect-src https://api.example.com; "
        "img-src 'self' data: https://cdn.example.com; font-src 'self' https://cdn.example.com; "
        "media-src 'self' data: https://cdn.example.com; frame-src 'none'; object-src 'none'; base-uri 'self'"
    )
