"""Matching URIs against templates."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.interaction.memory_peer import LATEST_LEGACY, MODERN, connected
from tests.server.listening import ACKNOWLEDGED, peer_of, subscription_of, told

from trio_mcp import Limits, PeerError, Server, open_memory
from trio_mcp.server.offers.resources import LONGEST_URI, UriTemplate


@pytest.mark.parametrize(
    ("template", "uri", "values"),
    [
        ("note://{name}", "note://a%20b", {"name": "a b"}),
        ("note://{name}", "note://a/b", None),
        ("file:///{+path}", "file:///a/b.txt", {"path": "a/b.txt"}),
        ("file:///{path*}", "file:///a/b", {"path": "a/b"}),
        ("db://{table}/{row}", "db://users/7", {"table": "users", "row": "7"}),
        ("a.b://{x}", "aXb://1", None),
        ("note://{name}", "note://", None),
        ("x://v{a}-beta/{b}.txt", "x://v1-beta/c.txt", {"a": "1", "b": "c"}),
        ("git://{a}/{+path}/raw?at={b}", "git://me/a/raw/raw?at=7", {"a": "me", "path": "a/raw", "b": "7"}),
        ("x://{+path}/{name}", "x://a/b/c", {"path": "a/b", "name": "c"}),
        ("x://{name}?q={+query}", "x://a?q=b?c#d", {"name": "a", "query": "b?c#d"}),
        ("x://all?page={page}&size={size}", "x://all?page=2&size=50", {"page": "2", "size": "50"}),
        ("x://all?page={page}&size={size}", "x://all?page=a%26b&size=5&0", {"page": "a&b", "size": "5&0"}),
        ("x://all?page={page}&size={size}", "x://all?page=2&more=1&size=50", None),
        ("geo://{lat},{lon}", "geo://52.5,13.4", {"lat": "52.5", "lon": "13.4"}),
        (
            "x://{user}@{host}:{port}/{+path}",
            "x://me@here:1/a/b",
            {"user": "me", "host": "here", "port": "1", "path": "a/b"},
        ),
        ("x://{a}]{b}", "x://a]b", {"a": "a", "b": "b"}),
        ("x://h/{a}{?q}", "x://h/1?q=2&other=100%", {"a": "1", "q": "2"}),
        ("x://h/{a}{?q}", "x://h/1?q=100%", None),
    ],
)
def test_uri_must_match_the_whole_uri_template(template: str, uri: str, values: dict[str, str] | None) -> None:
    assert UriTemplate(template).match(uri) == values


@pytest.mark.parametrize(
    "template",
    [
        *("x://{a,b}", "x://{", "x://}", "x://{a}{a}", "x://{a}{?a}", "x://{?a,a}", "x://{?a*}"),
        *("x://{?a}/b", "x://a?b{?c}", "x://a{&c}", "x://{/a}", "x://{#a}"),
    ],
)
def test_unsupported_uri_template_raises(template: str) -> None:
    with pytest.raises(ValueError, match="x://"):
        UriTemplate(template)


# Linear time


@pytest.mark.parametrize(
    ("template", "hint"),
    [
        ("git://{owner}-{repo}", "{owner}/{repo}"),
        ("git://{owner}{repo}", "{owner}/{repo}"),
        ("git://{+path}.{suffix}", "{+path}/{suffix}"),
        ("git://{name}-{+path}", "{name}/{+path}"),
        ("git://{+path}&{name}", "{+path}/{name}"),
        ("git://{+one}/{+two}", "only one"),
        ("git://{one*}/raw/{+two}", "only one"),
    ],
)
def test_uri_template_that_a_uri_could_match_in_two_ways_raises(template: str, hint: str) -> None:
    with pytest.raises(ValueError, match=rf"{re.escape(template)} is ambiguous.*{re.escape(hint)}"):
        UriTemplate(template)


def test_ambiguous_uri_template_raises_at_registration() -> None:
    server = Server("s")
    with pytest.raises(ValueError, match="is ambiguous"):

        @server.resource("git://{owner}-{repo}")
        async def thing(owner: str, repo: str) -> None: ...


NAMES = ["{a}", "{b}", "{c}", "{+d}"]
LITERALS = st.text("/-a.?,&", max_size=3)


@st.composite
def templates(draw: st.DrawFn) -> str:
    names = draw(st.lists(st.sampled_from(NAMES), unique=True, max_size=4))
    return "x:" + draw(LITERALS) + "".join(name + draw(LITERALS) for name in names)


def ways(template: str, uri: str) -> int:
    """How many ways there are to read ``uri`` as ``template``, by trying them all."""
    name, rest = re.fullmatch(r"([^{]*)(.*)", template, re.DOTALL).groups()  # type: ignore[union-attr]
    if not uri.startswith(name):
        return 0
    uri = uri.removeprefix(name)
    if not rest:
        return int(not uri)
    expression, rest = rest.split("}", 1)
    ends = range(1, len(uri) + 1)
    if not expression.startswith("{+"):
        between = rest.partition("{")[0] if "{" in rest and not set(rest.partition("{")[0]) & set("/?#") else ""
        ends = [end for end in ends if not set(uri[:end]) & {*"/?#", *re.findall("[,&]", between)[:1]}]
    return sum(ways(rest, uri[end:]) for end in ends)


@given(templates(), st.text("/-a.?,&", max_size=12))
def test_accepted_uri_template_matches_a_uri_in_at_most_one_way(template: str, uri: str) -> None:
    try:
        pattern = UriTemplate(template)
    except ValueError:
        return
    uri = "x:" + uri
    count = ways(template, uri)
    assert count <= 1
    values = pattern.match(uri)
    if values is not None:
        assert count == 1
        assert re.sub(r"\{\+?(\w)\}", lambda match: values[match[1]], template) == uri


async def test_too_long_resource_uri_is_rejected_before_template_matching() -> None:
    server, uri = Server("s"), "git://a/" + "b" * LONGEST_URI
    looked: list[str] = []

    @server.resource("git://{owner}/{+path}")
    async def thing(owner: str, path: str) -> str:
        return "thing"

    match = UriTemplate.match
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(UriTemplate, "match", lambda self, uri: looked.append(uri) or match(self, uri))  # type: ignore[func-returns-value]
        for era in ("legacy", "modern"):
            async with open_memory(server, era=era) as client:  # type: ignore[arg-type]
                with pytest.raises(PeerError, match="at most 8192 characters") as caught:
                    await client.read_resource(uri)
                assert (caught.value.code, caught.value.data) == (-32602, None)
        async with peer_of(server) as peer:
            acknowledged = await peer.listen(resourceSubscriptions=[uri, "git://a/b"])
            assert acknowledged["notifications"]["resourceSubscriptions"] == ["git://a/b"]
    assert looked == ["git://a/b"]


async def test_listen_with_a_thousand_long_uris_does_not_delay_other_requests() -> None:
    server = Server("s", limits=Limits(max_subscriptions=1000))
    for number in range(3):

        @server.resource(f"git://{{owner}}/{{+path}}/raw/{number}", name=str(number))
        async def thing(owner: str, path: str) -> str:
            return "thing"

    hostile = [f"git://{'a/raw/' * 1300}{'%2e' * 30}{number}" for number in range(1000)]
    async with peer_of(server) as peer:
        message = peer.message("subscriptions/listen", {"notifications": {"resourceSubscriptions": hostile}}, id=1)
        await peer.send(message)
        await peer.send(peer.message("tools/list", id=2))
        first = await peer.take(lambda m: m.get("id") == 2 or subscription_of(m) == 1)
        assert first.get("id") == 2
        assert told(await peer.take(lambda m: subscription_of(m) == 1)) == ACKNOWLEDGED


# What a handler may rely on


@pytest.mark.parametrize(
    "value",
    [
        "..%2Fsecret.txt",
        "%2Fetc%2Fpasswd",
        "a%2Fb",
        "a%2fb",
        "..%5Csecret",
        "a\\b",
        ".",
        "..",
        "%2e",
        "%2E%2e",
        ".%2e",
        "a%00b",
        "a%0D%0Ab",
        "a\nb",
        "a%7Fb",
        "a%C2%85b",
        "a%FFb",
        "%C0%AE%C0%AE",
        "%ED%A0%80",
        "%C3",
        "a%",
        "a%4",
        "a%zzb",
    ],
)
def test_template_variable_matches_one_segment_even_after_percent_decoding(value: str) -> None:
    assert UriTemplate("file:///{name}").match(f"file:///{value}") is None
    assert UriTemplate("file:///{name}/end").match(f"file:///{value}/end") is None


@pytest.mark.parametrize(
    ("value", "decoded"),
    [
        ("a%20b", "a b"),
        ("...", "..."),
        (".hidden", ".hidden"),
        ("a..b", "a..b"),
        ("%252e%252e%252f", "%2e%2e%2f"),
        ("%C3%A9", "é"),
        ("é", "é"),
        ("a%3Fb%23c", "a?b#c"),
        ("%7B%7D", "{}"),
    ],
)
def test_template_variable_is_percent_decoded_once(value: str, decoded: str) -> None:
    assert UriTemplate("file:///{name}").match(f"file:///{value}") == {"name": decoded}


@pytest.mark.parametrize(
    "value",
    [
        "..",
        "../secret",
        "a/../../secret",
        "a/..",
        "..%2Fsecret",
        "a%2F..%2F..%2Fsecret",
        "a/%2e%2e/b",
        "a%5C..%5Cb",
        "..\\b",
        "/etc/passwd",
        "%2Fetc%2Fpasswd",
        "%5C%5Chost",
        "a%00b",
        "a%0Ab",
        "a/%FF",
        "a%",
    ],
)
def test_path_variable_of_a_template_does_not_match_parent_directories(value: str) -> None:
    for form in ("{+path}", "{path*}"):
        assert UriTemplate(f"file:///{form}").match(f"file:///{value}") is None
        assert UriTemplate(f"file:///{form}/raw").match(f"file:///{value}/raw") is None


@pytest.mark.parametrize(
    ("value", "decoded"), [("a%2Fb/c", "a/b/c"), ("a/.../b..c/.d", "a/.../b..c/.d"), ("a//b/", "a//b/")]
)
def test_path_variable_of_a_template_can_contain_slashes(value: str, decoded: str) -> None:
    assert UriTemplate("file:///{+path}").match(f"file:///{value}") == {"path": decoded}


@given(st.text(max_size=20), st.booleans())
def test_template_variables_never_contain_traversal_segments(text: str, encoded: bool) -> None:
    value = quote(text, safe="") if encoded else text
    name = UriTemplate("x:///{name}").match(f"x:///{value}")
    path = UriTemplate("x:///{+path}").match(f"x:///{value}")
    for values in (name, path):
        for found in (values or {}).values():
            assert found
            assert not re.search(r"[\x00-\x1f\x7f-\x9f]", found)
            assert not found.startswith(("/", "\\"))
            assert ".." not in re.split(r"[/\\]", found)
    if name is not None:
        assert not re.search(r"[/\\]", name["name"])
        assert name["name"] not in (".", "..")


@pytest.mark.parametrize(("revision", "code"), [(LATEST_LEGACY, -32002), (MODERN, -32602)])
async def test_uri_with_an_invalid_template_variable_gets_error_resource_not_found_in_all_methods(
    revision: str, code: int
) -> None:
    server = Server("s")
    seen: list[str] = []

    @server.resource("file:///{name}")
    async def file(name: str) -> str:
        seen.append(name)
        return name

    async with connected(server, revision) as peer:
        for uri in ("file:///..%2Fsecret.txt", "file:///..", "file:///a%00b", "file:///%FF"):
            error = (await peer.request("resources/read", {"uri": uri}))["error"]
            assert (error["code"], error["message"]) == (code, "Resource not found")
            if revision == LATEST_LEGACY:
                refused = (await peer.request("resources/subscribe", {"uri": uri}))["error"]
                assert refused["code"] == code
    assert seen == []
