"""Which proxy the environment names, by the rules of curl; and what such a proxy is told, and what it is not."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import attrs
import pytest
import trio
import trustme
from tests.transports.http_client.scripted import OK, Script, Scripted, Visitor, answering, scripted

from trio_mcp.transports.http_client import dialing
from trio_mcp.transports.http_client.client import HttpClient
from trio_mcp.transports.http_client.connection import RequestNotSent
from trio_mcp.transports.http_client.origins import HttpProxy, Origin, proxy_at, proxy_from_environment, split_url

PROXY = "http://proxy.example:3128"
HERE = [
    "127.0.0.1",
    "127.8.8.8",
    "localhost",
    "localhost.",
    "LOCALHOST:8000",
    "a.localhost",
    "[::1]",
    "[::ffff:127.0.0.1]",
]
CHOSEN = HttpProxy(Origin("http", "proxy.example", 3128))


@pytest.mark.parametrize(
    ("environ", "url", "chosen"),
    [
        ({}, "http://example.com", False),
        ({"http_proxy": PROXY}, "http://example.com", True),
        ({"HTTP_PROXY": PROXY}, "http://example.com", True),
        ({"http_proxy": PROXY}, "https://example.com", False),
        ({"https_proxy": PROXY}, "https://example.com", True),
        ({"HTTPS_PROXY": PROXY}, "https://example.com", True),
        ({"HTTPS_PROXY": PROXY}, "http://example.com", False),
        ({"all_proxy": PROXY}, "http://example.com", True),
        ({"ALL_PROXY": PROXY}, "https://example.com", True),
        ({"https_proxy": PROXY, "HTTPS_PROXY": "http://other"}, "https://example.com", True),
        ({"https_proxy": PROXY, "all_proxy": "http://other"}, "https://example.com", True),
        ({"https_proxy": "", "all_proxy": PROXY}, "https://example.com", True),
        ({"http_proxy": ""}, "http://example.com", False),
        ({"http_proxy": PROXY}, "http://192.0.2.1", True),
        *[({"all_proxy": PROXY}, f"{scheme}://{host}", False) for scheme in ("http", "https") for host in HERE],
        ({"http_proxy": PROXY}, "http://localhost.example.com", True),
        ({"http_proxy": PROXY}, "http://notlocalhost", True),
        # A CGI program has the header Proxy of a stranger there.
        ({"HTTP_PROXY": PROXY, "REQUEST_METHOD": "GET"}, "http://example.com", False),
        ({"http_proxy": PROXY, "REQUEST_METHOD": "GET"}, "http://example.com", True),
    ],
)
def test_proxy_environment_variables_select_the_proxy(environ: dict[str, str], url: str, chosen: bool) -> None:
    assert proxy_from_environment(environ, split_url(url)[0]) == (CHOSEN if chosen else None)


@pytest.mark.parametrize(
    ("exceptions", "host", "exempt"),
    [
        ("*", "example.com", True),
        ("example.com", "example.com", True),
        ("example.com", "www.example.com", True),
        ("example.com", "example.com.", True),
        ("example.com.", "example.com", True),
        (".example.com", "www.example.com", True),
        (".example.com", "example.com", True),
        ("EXAMPLE.com", "example.com", True),
        ("example.com", "nonexample.com", False),
        ("www.example.com", "example.com", False),
        ("a.b, example.com", "example.com", True),
        ("a.b example.com", "example.com", True),
        (",, ,", "example.com", False),
        (".", "example.com", False),
        ("a.b,*", "example.com", False),
        ("*.example.com", "www.example.com", True),
        ("*.example.com", "a.b.example.com", True),
        ("*.example.com", "example.com", True),
        ("*.EXAMPLE.com.", "www.example.com", True),
        ("*example.com", "nonexample.com", False),
        ("*.example.com", "www.nonexample.com", False),
        ("*.", "example.com", False),
        ("a.b *.example.com:8080", "www.example.com:8080", True),
        ("*.example.com:8080", "www.example.com", False),
        ("example.com:80", "example.com", True),
        ("example.com:8080", "example.com:8080", True),
        ("example.com:8080", "example.com:8081", False),
        ("example.com:8080", "example.com", False),
        ("example.com", "example.com:8080", True),
        ("example.com:", "example.com", False),
        (":80", "example.com", False),
        ("192.0.2.1:8080", "192.0.2.1:8080", True),
        ("192.0.2.1:8080", "192.0.2.1:8081", False),
        ("[2001:db8::1]:8080", "[2001:db8::1]:8080", True),
        ("[2001:db8::1]:8080", "[2001:db8::1]:80", False),
        ("2001:db8::8080", "[2001:db8::1]:8080", False),
        ("localhost", "localhost", True),
        ("a.example,192.0.2.1", "192.0.2.1", True),
        ("a.example", "192.0.2.1", False),
        ("192.0.2.0/24", "192.0.2.3", True),
        ("192.0.2.1/24", "192.0.2.3", True),
        ("10.0.0.0/8", "192.0.2.1", False),
        ("10.0.0.0/99", "10.0.0.0", False),
        ("2.1", "192.0.2.1", False),
        ("2001:db8::1", "[2001:db8::1]", True),
        ("[2001:db8::1]", "[2001:db8::1]", True),
        ("fe80::/10", "[fe80::1]", True),
        ("::/0", "192.0.2.1", False),
        ("", "example.com", False),
    ],
)
@pytest.mark.parametrize("name", ["no_proxy", "NO_PROXY"])
def test_no_proxy_environment_variable_lists_hosts_that_bypass_the_proxy(
    name: str, exceptions: str, host: str, exempt: bool
) -> None:
    environ = {"all_proxy": PROXY, name: exceptions}
    assert proxy_from_environment(environ, split_url(f"http://{host}/")[0]) == (None if exempt else CHOSEN)


@pytest.mark.parametrize(
    ("url", "origin", "authorization"),
    [
        ("proxy.example:3128", Origin("http", "proxy.example", 3128), None),
        ("http://proxy.example", Origin("http", "proxy.example", 80), None),
        ("https://proxy.example/", Origin("https", "proxy.example", 443), None),
        ("http://me:secret@proxy.example:1", Origin("http", "proxy.example", 1), "Basic bWU6c2VjcmV0"),
        ("http://m%65:s%65cret@proxy.example:1", Origin("http", "proxy.example", 1), "Basic bWU6c2VjcmV0"),
        ("http://me@proxy.example:1", Origin("http", "proxy.example", 1), "Basic bWU6"),
    ],
)
def test_http_client_accepts_a_proxy_given_as_a_url_or_as_host_with_port(
    url: str, origin: Origin, authorization: str | None
) -> None:
    assert proxy_at(url) == HttpProxy(origin, authorization)


@pytest.mark.parametrize(
    "url",
    ["socks5://me:secret@proxy.example:1080", "http://me:secret@proxy.example:x", "http://me:secret@[x", "http://"],
)
def test_invalid_proxy_raises_value_error_without_quoting_its_password(url: str) -> None:
    with pytest.raises(ValueError, match="proxy") as refused:
        HttpClient("http://example.com", http_proxy=url)
    assert "secret" not in str(refused.value)


def test_invalid_proxy_environment_variable_is_named_in_the_error() -> None:
    with pytest.raises(
        ValueError, match="all_proxy: invalid proxy URL: the scheme must be http or https, not 'socks5h'"
    ):
        proxy_from_environment({"all_proxy": "socks5h://127.0.0.1:1080"}, split_url("http://example.com")[0])


def test_repr_of_a_proxy_hides_its_password() -> None:
    assert "bWU6c2VjcmV0" not in repr(proxy_at("http://me:secret@proxy.example:1"))


@attrs.define
class Told:
    """What a proxy was told, and by whom it was asked."""

    heads: list[bytes] = attrs.Factory(list)


def relaying(told: Told) -> Script:
    """A proxy for both kinds of requests."""

    async def script(visitor: Visitor) -> None:
        while request := await visitor.request():
            told.heads.append(request)
            method, target, _ = request.split(b" ", 2)
            if method == b"CONNECT":
                host, _, port = target.decode().rpartition(":")
                await visitor.send(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await tunnel(visitor.stream, await trio.open_tcp_stream(host.strip("[]"), int(port)))
                return
            asked = urlsplit(target)
            async with await trio.open_tcp_stream(asked.hostname or b"", asked.port or 80) as onward:
                lines = request.replace(b"http://" + asked.netloc, b"", 1).split(b"\r\n")
                kept = [line for line in lines if not line.lower().startswith(b"proxy-")]
                await onward.send_all(b"\r\n".join(kept))
                await visitor.send(await onward.receive_some(65536))

    return script


async def tunnel(one: trio.abc.Stream, other: trio.abc.Stream) -> None:
    async def copy(source: trio.abc.Stream, sink: trio.abc.Stream) -> None:
        try:
            while data := await source.receive_some(65536):
                await sink.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        nursery.cancel_scope.cancel()

    async with other, trio.open_nursery() as nursery:
        nursery.start_soon(copy, one, other)
        nursery.start_soon(copy, other, one)


@asynccontextmanager
async def proxied(
    script: Script, ssl_context: ssl.SSLContext | None = None, proxy_context: ssl.SSLContext | None = None
) -> AsyncGenerator[tuple[Scripted, Scripted, Told]]:
    """A server, a proxy, and what the proxy was told."""
    told = Told()
    async with (
        scripted(script, ssl_context=ssl_context) as server,
        scripted(relaying(told), ssl_context=proxy_context) as proxy,
    ):
        yield server, proxy, told


def seeing(requests: list[bytes]) -> Script:
    async def script(visitor: Visitor) -> None:
        while request := await visitor.request():
            requests.append(request)
            await visitor.send(OK)

    return script


async def test_proxy_gets_the_absolute_url_and_the_proxy_credentials_for_a_plain_http_request() -> None:
    seen: list[bytes] = []
    async with proxied(seeing(seen)) as (server, proxy, told):
        url = f"http://me:secret@127.0.0.1:{proxy.port}"
        async with HttpClient(server.url, http_proxy=url) as client:
            for _ in range(2):
                async with client.request("POST", "/mcp?a", body=b"{}") as reply:
                    assert await reply.read(10) == b"hello"
        assert len(proxy.visitors) == 1, "the connection to the proxy is kept"
        assert told.heads[0].startswith(b"POST http://127.0.0.1:%d/mcp?a HTTP/1.1\r\n" % server.port)
        assert b"\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n" in told.heads[0]
        assert b"\r\nHost: 127.0.0.1:%d\r\n" % server.port in told.heads[0]
    assert len(seen) == 2
    assert b"proxy" not in seen[0].lower()


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def trusting(authority: trustme.CA, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """The client's side, and what it takes for the system's usual one."""
    context = ssl.create_default_context()
    authority.configure_trust(context)
    monkeypatch.setattr(dialing, "_usual_context", lambda: context)
    return context


@pytest.fixture
def certified(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    return context


@pytest.mark.parametrize("secure_proxy", [False, True])
async def test_https_request_uses_a_connect_tunnel_without_exposing_headers_to_the_proxy(
    trusting: ssl.SSLContext, certified: ssl.SSLContext, secure_proxy: bool
) -> None:
    seen: list[bytes] = []
    async with proxied(seeing(seen), certified, certified if secure_proxy else None) as (server, proxy, told):
        url = f"{proxy.scheme}://me:secret@127.0.0.1:{proxy.port}"
        async with HttpClient(server.url, http_proxy=url, ssl_context=trusting) as client:
            for _ in range(2):
                async with client.request("POST", "/mcp", [(b"Authorization", b"Bearer x")], b"{}") as reply:
                    assert await reply.read(10) == b"hello"
        address = b"127.0.0.1:%d" % server.port
        assert told.heads == [
            b"CONNECT %s HTTP/1.1\r\nHost: %s\r\nProxy-Authorization: Basic bWU6c2VjcmV0\r\n\r\n" % (address, address)
        ]
    assert len(seen) == 2
    assert b"proxy" not in seen[0].lower()


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"HTTP/1.1 407 Evil\x1b[31m\r\nContent-Length: 0\r\n\r\n", "407 Proxy Authentication Required"),
        (b"HTTP/1.1 599 Odd\r\n\r\n", "599"),
        (b"HTTP/1.1 200 OK\r\n\r\nhello", "unexpected bytes"),
        (b"SSH-2.0-x\r\n\r\n", "no valid HTTP"),
        (b"HTTP/1.1 200 OK\r\n", "closed the connection"),
        (b"", "closed the connection"),
    ],
)
async def test_refusal_by_a_proxy_raises_an_error_with_its_status_but_not_the_password(
    answer: bytes, words: str
) -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(answer)

    async with scripted(script) as proxy:
        url = f"http://me:secret@127.0.0.1:{proxy.port}"
        async with HttpClient("https://example.com", http_proxy=url) as client:
            with pytest.raises(RequestNotSent, match=words) as refused:
                async with client.request("POST", "/"):
                    pass
    said = f"{refused.value} {refused.value!r}"
    assert "secret" not in said
    assert "bWU6" not in said
    assert "\x1b" not in said
    assert f"127.0.0.1:{proxy.port}" in said


async def test_error_for_an_unreachable_proxy_names_the_proxy_without_its_password() -> None:
    async with HttpClient("http://example.com", http_proxy="http://me:secret@127.0.0.1:1") as client:
        with pytest.raises(RequestNotSent, match=r"127\.0\.0\.1:1: Connection refused") as refused:
            async with client.request("POST", "/"):
                pass
    assert "secret" not in str(refused.value)


async def test_http_client_uses_proxy_environment_variables_if_they_are_not_disabled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "all_proxy", "ALL_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    async with scripted(answering(OK)) as server, scripted(answering(OK)) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
        async with HttpClient("http://example.com") as client, client.request("GET", "/"):
            pass
        assert (len(server.visitors), len(proxy.visitors)) == (0, 1)
        async with HttpClient("http://127.0.0.1:1", http_proxy=None) as client:
            with pytest.raises(RequestNotSent):
                async with client.request("GET", "/"):
                    pass
        async with HttpClient(server.url) as client, client.request("GET", "/"):
            pass
        assert (len(server.visitors), len(proxy.visitors)) == (1, 1)
