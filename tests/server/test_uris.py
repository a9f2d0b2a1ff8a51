"""The normal form of URIs: where a resource is declared, read, subscribed to and completed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AnyUrl
from tests.interaction.memory_peer import LATEST_LEGACY, MODERN, connected
from tests.server.listening import UPDATED, peer_of, told

from trio_mcp import PeerError, Server, open_memory
from trio_mcp.server.offers import uris
from trio_mcp.server.offers.uris import UriTemplate, checked_uri, normal_uri
from trio_mcp.types import ResourceTemplateReference

SPELLINGS = [
    ("notes:///über uns", ["notes:///%C3%BCber%20uns", "notes:///%c3%bcber%20uns", "NOTES:///über%20uns"]),
    ("Config://App/Settings", ["config://app/Settings", "CONFIG://APP/Settings"]),
    ("https://example.com", ["https://example.com/", "HTTPS://Example.com:443", "https://example.com:/"]),
    ("https://example.com/?q=é", ["https://example.com?q=%C3%A9"]),
    ("x://a/%c3%a9", ["x://a/%C3%A9", "x://a/é"]),
    ("x://a/%7Eme/%61", ["x://a/~me/a", "x://a/%7eme/a"]),
    ("x://a/b/../c/./d", ["x://a/c/d", "x://a/c/%2E/d", "x://a/b/%2e%2e/c/d"]),
    ("x://me@Host/a|b", ["x://me@host/a%7Cb"]),
    ("x:a b", ["X:a%20b"]),
    ("x://a:/b", ["x://a/b"]),
    ("x://日本/語", ["x://%E6%97%A5%E6%9C%AC/%E8%AA%9E"]),
]
DISTINCT = [
    ("x://a/b%2Fc", "x://a/b/c"),
    ("x://a/b%3Fc", "x://a/b?c"),
    ("x://a/b%23c", "x://a/b#c"),
    ("x://a/b%26c", "x://a/b&c"),
    ("x://a/100%25", "x://a/100%2525"),
    ("x://a/%252e%252e/b", "x://a/../b"),
    ("x://a/B", "x://a/b"),
    ("x://Me@a/", "x://me@a/"),
    ("x://a/", "x://a"),
    ("x://a:80/", "x://a/"),
    ("x://a?b=/../c", "x://a?b=/c"),
    ("urn:a/../b", "urn:b"),
    ("x://a/..%2Fb", "x://b"),
    ("x://a/%%32e%%32e/b", "x://a/../b"),
]


@pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])
@pytest.mark.parametrize(("declared", "spellings"), SPELLINGS)
async def test_resource_is_readable_by_each_spelling_of_its_uri(
    declared: str, spellings: list[str], revision: str
) -> None:
    server = Server("spelled")

    @server.resource(declared)
    async def thing() -> str:
        return "found"

    options: Any = {} if revision == MODERN else {"revision": revision}
    async with open_memory(server, **options) as client:
        (listed,) = [each async for each in client.list_resources()]
        assert listed.uri.isascii()
        assert " " not in listed.uri
        for spelling in [declared, listed.uri, str(AnyUrl(listed.uri)), *spellings]:
            result = await client.read_resource(spelling)
            assert result.contents[0].uri == spelling
    server.remove_resource(spellings[0])
    assert len(server._resources.registry) == 0


@pytest.mark.parametrize(("one", "other"), DISTINCT)
def test_uris_of_different_resources_have_different_normal_forms(one: str, other: str) -> None:
    assert normal_uri(one) != normal_uri(other)


@given(st.text(alphabet="aB/.%2eEfF5:?#@é {}\\\ud800", max_size=20))
def test_normalizing_a_normalized_uri_does_not_change_it(rest: str) -> None:
    for scheme in ("x://", "X:", "HTTP://a"):
        assert normal_uri(normal_uri(scheme + rest)) == normal_uri(scheme + rest)


@given(st.from_regex(r"(note|a|x-y\+1|http|FILE):/{0,3}[ab:/.@_?#\[\]!1A( %{}-]{0,9}", fullmatch=True))
def test_fast_uri_check_by_regular_expression_agrees_with_the_full_uri_check(uri: str) -> None:
    def checked() -> str:
        try:
            return checked_uri(uri)
        except ValueError as error:
            return str(error)

    shown = checked()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uris, "_PLAIN", re.compile("(?!)"))
        assert checked() == shown


def test_resource_registered_with_two_spellings_of_a_uri_raises() -> None:
    server = Server("spelled")
    server.resource("x://a/é")(lambda: "")
    with pytest.raises(ValueError, match="already"):
        server.resource("X://A/%c3%a9")(lambda: "")


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("notes://über uns", "'notes:///über uns'"),
        ("mem://ns:key", "'mem:///ns:key'"),
        ("x://a|b/c", "no spaces"),
        ("x://[a/c", "host"),
        ("x://{name}:key/c", "host"),
        ("https:///path", "host"),
        ("x://a/100%", "%25"),
        ("x://a/{name}%zz", "%25"),
        ("x://a/b\n", "control"),
        ("x://a/b ", "a space at its beginning or end"),
        ("x://a/\ud800", "surrogates"),
        ("über:uns", "must begin with a scheme"),
    ],
)
def test_invalid_resource_uri_raises_at_registration(uri: str, words: str) -> None:
    with pytest.raises(ValueError, match=r"URI|surrogates") as raised:
        Server("spelled").resource(uri)(lambda name="": "")
    assert words in str(raised.value)


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        ("file:///docs/café/{name}", "file:///docs/caf%c3%a9/%C3%A9.txt", {"name": "é.txt"}),
        ("file:///my docs/{name}", "FILE:///my%20docs/a%20b", {"name": "a b"}),
        ("menu://{day}", "MENU://Monday", {"day": "Monday"}),
        ("x://{who}.Example.com/{what}", "X://Me.EXAMPLE.com/This", {"who": "Me", "what": "This"}),
        ("https://Ex.com{?q}", "https://ex.COM?q=1", {"q": "1"}),
        ("https://ex.com{?q}", "https://ex.com/?q=1", {"q": "1"}),
        ("https://ex.com/{q}", "https://ex.com:443/1", {"q": "1"}),
        ("x://Me@h/{q}", "x://Me@H/1", {"q": "1"}),
        ("x://Me@h/{q}", "x://me@h/1", None),
        ("x://{a}{?b,c}", "x://1?c=3&b=2", {"a": "1", "b": "2", "c": "3"}),
        ("x://{a}{?b,c}", "x://1", {"a": "1"}),
        ("x://{a}{?b,c}", "x://1?", {"a": "1"}),
        ("x://{a}{?b,c}", "x://1?d=4&%62=a%26b", {"a": "1", "b": "a&b"}),
        ("x://s?a={a}{&b}", "x://s?a=1&b=2", {"a": "1", "b": "2"}),
        ("x://{+p}{?b}", "x://1/2?b=image/png", {"p": "1/2", "b": "image/png"}),
        ("x://s{?b}", "x://s?b=", {"b": ""}),
        ("x://s{?b}", "x://s?b=1&b=2", None),
        ("x://s{?b}", "x://s?b=../x", None),
        ("x://s{?b}", "x://s?b=a%2F..%2F..%2Fx", None),
        ("x://s{?b}", "x://s?b=%2Fetc", None),
        ("x://s{?b}", "x://s?b=%00", None),
        ("x://s{?b}", "x://s?b=%ff", None),
        ("x://s{?b}", "x://s/t?b=1", None),
        ("file:///{+p}", "file:///a/%2e%2e/b", None),
        ("file:///{+p}", "file:///a/%%32e%%32e/b", None),
        ("file:///docs/{+p}", "file:///docs/x/../../secret", None),
        ("file:///docs/{+p}", "file:///docs/%2E%2E/secret", None),
    ],
)
def test_uri_template_matches_the_normal_form_of_a_uri(template: str, uri: str, values: dict[str, str] | None) -> None:
    assert UriTemplate(template).match(uri) == values


async def test_missing_query_parameters_of_a_template_have_their_defaults() -> None:
    server = Server("spelled")

    @server.resource("res://{area}{?fmt,limit}")
    async def area(area: str, limit: int = 10, fmt: str = "text", other: bool = True) -> Any:
        return {"all": [area, fmt, limit, other]}

    @server.resource("res://all")
    async def everything(limit: int = 3) -> Any:
        return {"all": limit}

    async with open_memory(server) as client:
        texts = [
            (await client.read_resource(f"res://{rest}")).contents[0].text  # type: ignore[union-attr]
            for rest in ("a", "a?limit=5&fmt=x", "all")
        ]
        assert texts == ['{"all":["a","text",10,true]}', '{"all":["a","x",5,true]}', '{"all":3}']
        with pytest.raises(PeerError, match="limit"):
            await client.read_resource("res://a?limit=many")


@pytest.mark.parametrize("uri", ["u://x", "u://{id}", "u://{?id}", "u://{missing}{?id}"])
def test_resource_parameter_without_a_default_must_be_in_the_template(uri: str) -> None:
    with pytest.raises(TypeError, match="template"):
        Server("spelled").resource(uri)(lambda id, other: "")


@pytest.mark.parametrize("revision", [LATEST_LEGACY, MODERN])
async def test_subscriber_is_notified_with_its_own_spelling_of_the_uri(revision: str) -> None:
    server = Server("spelled")

    @server.resource("notes:///über uns")
    async def thing() -> str:
        return ""

    spelling = "notes:///%c3%bcber%20uns"
    async with peer_of(server, revision) as peer:
        if revision == MODERN:
            assert (await peer.listen(resourceSubscriptions=[spelling]))["notifications"]["resourceSubscriptions"]
        else:
            assert (await peer.request("resources/subscribe", {"uri": spelling}))["result"] == {}
        server.resource_updated("Notes:///über uns")
        assert told(await peer.take(lambda message: message.get("method") == UPDATED)) == f"{UPDATED} {spelling}"


async def test_completion_requests_find_a_resource_template_by_each_spelling() -> None:
    server = Server("spelled")

    @server.resource("X://Docs/café/{name}")
    async def thing(name: str) -> str:
        return name

    server.completion(resource="x://docs/caf%c3%a9/{name}", argument="name")(lambda value: ["a"])
    async with open_memory(server) as client:
        (listed,) = [each async for each in client.list_resource_templates()]
        for spelling in ("X://Docs/café/{name}", listed.uri_template):
            assert (await client.complete(ResourceTemplateReference(spelling), "name", "")).values == ["a"]


async def test_resource_invisible_to_the_caller_is_hidden_in_each_spelling_of_its_uri() -> None:
    server = Server("spelled")
    server.resource("x://secret/é", visible=lambda auth: False)(lambda: "secret")
    async with connected(server) as peer:
        for uri in ("x://secret/é", "X://SECRET/%C3%A9", "x://secret/a/../é"):
            assert "error" in await peer.request("resources/read", {"uri": uri})
