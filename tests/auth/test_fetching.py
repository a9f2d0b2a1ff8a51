"""Requests to URLs that a stranger has named: bounded, to nowhere else, and with words for our people alone."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from importlib.metadata import version

import attrs
import pytest
import trio
import trustme
from tests.patience import LONG
from tests.transports.http_client.scripted import OK, Visitor, answering, scripted
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.auth.fetching import Fetch, Fetched, FetchFailed, HttpFetcher, UrlRules

HERE = UrlRules(loopback=True)
PUBLIC = UrlRules(public_addresses_only=True)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def get(url: str) -> Fetch:
    return Fetch(method="GET", url=url)


async def failure(request: Fetch, fetcher: HttpFetcher) -> str:
    with pytest.raises(FetchFailed) as failed:
        await fetcher.fetch(request)
    assert failed.value.__cause__ is None
    assert failed.value.__context__ is None, "an exception that has seen the secrets"
    return str(failed.value)


def named(*addresses: str) -> None:
    class Resolver(trio.abc.HostnameResolver):
        async def getaddrinfo(self, host: object, port: object, *_: object) -> object:  # type: ignore[override]
            return [(trio.socket.AF_INET, 1, 6, "", (each, port)) for each in addresses]

        async def getnameinfo(self, *_: object) -> object:  # type: ignore[override]
            raise NotImplementedError

    trio.socket.set_custom_hostname_resolver(Resolver())


def certified(*names: str) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """The contexts of a server with ``names`` and of its clients."""
    authority = trustme.CA()
    serving, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert(*names).configure_cert(serving)
    authority.configure_trust(trusting)
    return serving, trusting


# What is sent and what comes back


async def test_oauth_fetcher_returns_a_response_with_any_status() -> None:
    answer = b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\nDPoP-Nonce: n\r\nSet-Cookie: a\r\nSet-Cookie: b\r\n\r\n{}"
    async with scripted(answering(answer)) as server:
        fetched = await HttpFetcher(HERE).fetch(get(server.url))
    assert fetched == Fetched(
        status=400, headers={"content-length": "2", "dpop-nonce": "n", "set-cookie": "a\nb"}, body=b"{}"
    )


async def test_oauth_fetcher_post_sends_its_headers_and_form() -> None:
    received: list[bytes] = []

    async def script(visitor: Visitor) -> None:
        received.append(await visitor.request())
        await visitor.send(OK)

    async with scripted(script) as server:
        await HttpFetcher(HERE).fetch(
            Fetch(
                method="POST",
                url=f"http://127.0.0.1:{server.port}/token?tenant=1",
                headers=[("Authorization", "Basic abc"), ("Accept", "application/json")],
                body=b"grant_type=x",
                content_type="application/x-www-form-urlencoded",
            )
        )
    head, _, body = received[0].partition(b"\r\n\r\n")
    assert head.startswith(b"POST /token?tenant=1 HTTP/1.1\r\n")
    assert {
        b"Authorization: Basic abc",
        b"Accept: application/json",
        b"Content-Type: application/x-www-form-urlencoded",
        b"Content-Length: 12",
        b"Accept-Encoding: identity",
        f"User-Agent: trio-mcp/{version('trio-mcp')}".encode(),
    } <= set(head.split(b"\r\n"))
    assert body == b"grant_type=x"


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_oauth_fetcher_returns_a_redirect_response_without_following_the_redirect(status: int) -> None:
    async with scripted(answering(OK)) as other:
        moved = f"HTTP/1.1 {status} Moved\r\nLocation: {other.url}\r\nContent-Length: 0\r\n\r\n"
        here = f"HTTP/1.1 {status} Moved\r\nLocation: /here\r\nContent-Length: 0\r\n\r\n"
        for answer in (moved, here):
            async with scripted(answering(answer.encode())) as server:
                assert (await HttpFetcher(HERE).fetch(get(server.url))).status == status
            assert len(server.visitors) == 1
    assert other.visitors == []


async def test_oauth_fetcher_closes_the_connection_after_the_response() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(OK)
        await visitor.gone()
        over.set()

    over = trio.Event()
    async with scripted(script) as server:
        await HttpFetcher(HERE).fetch(get(server.url))
        await over.wait()


async def test_oauth_fetcher_requests_can_run_concurrently() -> None:
    met: list[Visitor] = []
    together = trio.Event()

    async def script(visitor: Visitor) -> None:
        await visitor.request()
        met.append(visitor)
        if len(met) == 3:
            together.set()
        await together.wait()
        await visitor.send(OK)

    fetcher = HttpFetcher(HERE)
    async with scripted(script) as server, trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(fetcher.fetch, get(server.url))
        await together.wait()


# Bounds


async def test_oauth_fetcher_limits_the_response_body() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\n\r\nhello world"
    async with scripted(answering(answer)) as server:
        assert (await HttpFetcher(HERE, max_bytes=11).fetch(get(server.url))).body == b"hello world"
        told = await failure(get(server.url), HttpFetcher(HERE, max_bytes=10))
    assert told == f"GET http://127.0.0.1:{server.port}: the response (status 200) is longer than 10 bytes"


async def test_oauth_fetcher_accepts_a_body_of_256_kib_by_default() -> None:
    most = b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 256 * 1024

    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(most + b"x" * visitor.number)

    async with scripted(script) as server:
        assert len((await HttpFetcher(HERE).fetch(get(server.url))).body) == 256 * 1024
        assert "longer than 262144 bytes" in await failure(get(server.url), HttpFetcher(HERE))


@pytest.mark.parametrize(
    "stuck",
    [b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", b"HTTP/1.1 100 Go on\r\n\r\n"],
)
async def test_oauth_fetcher_timeout_covers_the_whole_request(jump_clock: MockClock, stuck: bytes) -> None:
    waiting = trio.Event()

    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(stuck)
        waiting.set()
        await visitor.gone()

    async def jump() -> None:
        await waiting.wait()
        await wait_all_tasks_blocked(0.01)
        jump_clock.jump(LONG)

    async with scripted(script) as server, trio.open_nursery() as nursery:
        nursery.start_soon(jump)
        told = await failure(get(server.url), HttpFetcher(HERE, deadline=LONG))
    assert told == f"GET http://127.0.0.1:{server.port}: no complete response within {LONG:g} s"


async def test_response_that_arrives_slowly_does_not_extend_the_oauth_fetcher_deadline(
    autojump_clock: MockClock,
) -> None:
    async def answer(_: object, __: object) -> bytes:
        await trio.sleep(1)
        return b"x"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trio_mcp.transports.http_client.connection.HttpClientConnection.receive", answer)
        async with scripted(Visitor.gone) as server:
            await failure(get(server.url), HttpFetcher(HERE, deadline=5))
    assert trio.current_time() == pytest.approx(5)


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "identity, gzip"])
async def test_oauth_fetcher_refuses_a_compressed_response(encoding: str) -> None:
    answer = f"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Encoding: {encoding}\r\n\r\n{{}}"
    async with scripted(answering(answer.encode())) as server:
        assert "although no encoding was requested" in await failure(get(server.url), HttpFetcher(HERE))


@pytest.mark.parametrize(
    "answer", [b"garbage\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", b"HTTP/2 200\r\n\r\n"]
)
async def test_oauth_fetcher_raises_fetch_failed_for_a_malformed_response(answer: bytes) -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(answer)

    async with scripted(script) as server:
        assert (await failure(get(server.url), HttpFetcher(HERE))).startswith(f"GET http://127.0.0.1:{server.port}: ")


# Secrets


@pytest.mark.parametrize("header", [("Authorization", "geheim\r\nx: y"), ("Authorization", "gehëim"), ("Ä", "geheim")])
async def test_oauth_fetcher_error_for_an_invalid_header_hides_its_value(header: tuple[str, str]) -> None:
    async with scripted(answering(OK)) as server:
        told = await failure(Fetch(method="GET", url=server.url, headers=[header]), HttpFetcher(HERE))
    assert "header" in told
    assert "geheim" not in told
    assert "ë" not in told
    assert server.visitors == []


async def test_oauth_fetcher_errors_do_not_quote_the_query_or_response() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Encoding: x\r\nContent-Length: 6\r\n\r\ngeheim"
    async with scripted(answering(answer)) as server:
        told = await failure(get(f"{server.url}?code=geheim"), HttpFetcher(HERE))
    assert "geheim" not in told
    assert "password" not in repr(HttpFetcher(HERE, http_proxy="http://user:password@proxy.example"))


# Where connections go


async def test_oauth_fetcher_refuses_a_localhost_name_that_resolves_to_a_remote_address() -> None:
    named("192.0.2.1")
    told = await failure(get("http://localhost:1/"), HttpFetcher(HERE))
    assert told == (
        "GET http://localhost:1: no connection to localhost: the rules of this client forbid the address 192.0.2.1"
    )


@pytest.mark.parametrize("addresses", [["127.0.0.1"], ["10.0.0.1", "169.254.169.254"]])
async def test_oauth_fetcher_for_public_addresses_refuses_a_name_that_resolves_to_a_private_address(
    addresses: Sequence[str],
) -> None:
    named(*addresses)
    serving, trusting = certified("as.example")
    async with scripted(answering(OK), ssl_context=serving) as server:
        url = f"https://as.example:{server.port}/"
        told = await failure(get(url), HttpFetcher(PUBLIC, ssl_context=trusting))
        assert f"forbid the address {', '.join(addresses)}" in told
    assert server.visitors == []


async def test_oauth_fetcher_without_address_restrictions_accepts_a_name_that_resolves_to_any_address() -> None:
    named("127.0.0.1")
    serving, trusting = certified("as.example")
    async with scripted(answering(OK), ssl_context=serving) as server:
        fetched = await HttpFetcher(UrlRules(), ssl_context=trusting).fetch(get(f"https://as.example:{server.port}/"))
    assert fetched.body == b"hello"


@pytest.mark.parametrize(("address", "asked"), [("127.0.0.1", True), ("8.8.8.8", False)])
async def test_oauth_fetcher_allows_http_to_a_trusted_host_with_a_private_address(
    address: str, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    named(address)
    fetcher = HttpFetcher(UrlRules(trusted_http_hosts=frozenset(("idp",))))
    async with scripted(answering(OK)) as proxy, scripted(answering(OK)) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        if asked:
            assert (await fetcher.fetch(get(f"http://idp:{server.port}/"))).body == b"hello"
        else:
            assert f"forbid the address {address}" in await failure(get(f"http://idp:{server.port}/"), fetcher)
    assert (len(server.visitors), len(proxy.visitors)) == (int(asked), 0)


@pytest.mark.parametrize("name", ["as.localhost", "as.localhost.", "localhost."])
async def test_name_that_ends_in_localhost_resolves_to_this_machine_whatever_dns_says(name: str) -> None:
    looked_up: list[object] = []

    class Resolver(trio.abc.HostnameResolver):
        async def getaddrinfo(self, host: object, port: object, *_: object) -> object:  # type: ignore[override]
            looked_up.append(host)
            return [(trio.socket.AF_INET, 1, 6, "", ("127.0.0.1", port))]

        async def getnameinfo(self, *_: object) -> object:  # type: ignore[override]
            raise NotImplementedError

    trio.socket.set_custom_hostname_resolver(Resolver())
    async with scripted(answering(OK)) as server:
        fetched = await HttpFetcher(HERE).fetch(get(f"http://{name}:{server.port}/"))
    assert fetched.body == b"hello"
    assert looked_up == [b"localhost"]


async def test_oauth_fetcher_verifies_tls_certificates() -> None:
    named("127.0.0.1")
    serving, _ = certified("as.example")
    async with scripted(answering(OK), ssl_context=serving) as server:
        told = await failure(get(f"https://as.example:{server.port}/"), HttpFetcher(UrlRules()))
    assert "CERTIFICATE_VERIFY_FAILED" in told


async def test_oauth_fetcher_raises_for_a_forbidden_url_and_sends_nothing() -> None:
    async with scripted(answering(OK)) as server:
        assert "only https is allowed" in await failure(get(server.url), HttpFetcher(UrlRules()))
    assert server.visitors == []


# Proxies


@attrs.define
class Tunnels:
    """A proxy that brings each tunnel to one port of this machine."""

    port: int
    wanted: list[bytes] = attrs.Factory(list)

    async def serve(self, visitor: Visitor) -> None:
        self.wanted.append((await visitor.request()).split(b"\r\n")[0])
        other = await trio.open_tcp_stream("127.0.0.1", self.port)
        await visitor.send(b"HTTP/1.1 200 Connected\r\n\r\n")

        async def carry(source: trio.abc.Stream, target: trio.abc.Stream) -> None:
            async for data in source:
                await target.send_all(data)
            nursery.cancel_scope.cancel()

        async with other, trio.open_nursery() as nursery:
            nursery.start_soon(carry, visitor.stream, other)
            nursery.start_soon(carry, other, visitor.stream)


async def test_oauth_fetcher_uses_the_proxy_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    serving, trusting = certified("as.example")
    async with scripted(answering(OK), ssl_context=serving) as server:
        tunnels = Tunnels(server.port)
        async with scripted(tunnels.serve) as proxy:
            monkeypatch.setenv("https_proxy", proxy.url)
            fetched = await HttpFetcher(UrlRules(), ssl_context=trusting).fetch(get("https://as.example/"))
    assert fetched.body == b"hello"
    assert tunnels.wanted == [b"CONNECT as.example:443 HTTP/1.1"]


async def test_oauth_fetcher_for_public_addresses_does_not_use_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    named("127.0.0.1")
    async with scripted(answering(OK)) as proxy:
        monkeypatch.setenv("https_proxy", proxy.url)
        assert "forbid the address 127.0.0.1" in await failure(get("https://as.example/"), HttpFetcher(PUBLIC))
    assert proxy.visitors == []


async def test_oauth_fetcher_for_public_addresses_uses_a_configured_proxy() -> None:
    serving, trusting = certified("as.example")
    async with scripted(answering(OK), ssl_context=serving) as server:
        tunnels = Tunnels(server.port)
        async with scripted(tunnels.serve) as proxy:
            fetcher = HttpFetcher(PUBLIC, ssl_context=trusting, http_proxy=proxy.url)
            assert (await fetcher.fetch(get("https://as.example/"))).body == b"hello"
            assert "forbid the address" in await failure(get("https://169.254.169.254/"), fetcher)
    assert tunnels.wanted == [b"CONNECT as.example:443 HTTP/1.1"]


async def test_oauth_fetcher_request_to_a_local_http_url_bypasses_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    async with scripted(answering(OK)) as proxy, scripted(answering(OK)) as server:
        monkeypatch.setenv("http_proxy", proxy.url)
        await HttpFetcher(HERE).fetch(get(server.url))
        await HttpFetcher(HERE, http_proxy=proxy.url).fetch(get(server.url))
    assert proxy.visitors == []


async def test_oauth_fetcher_request_to_a_local_https_url_bypasses_the_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    serving, trusting = certified("127.0.0.1")
    async with scripted(answering(OK)) as proxy, scripted(answering(OK), ssl_context=serving) as server:
        monkeypatch.setenv("https_proxy", proxy.url)
        for fetcher in (
            HttpFetcher(HERE, ssl_context=trusting),
            HttpFetcher(HERE, ssl_context=trusting, http_proxy=proxy.url),
        ):
            assert (await fetcher.fetch(get(server.url))).body == b"hello"
    assert proxy.visitors == []


async def test_invalid_proxy_environment_variable_raises_fetch_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://user:geheim@proxy.example:x")
    told = await failure(get("https://as.example/"), HttpFetcher(UrlRules()))
    assert "https_proxy: invalid proxy" in told
    assert "geheim" not in told


async def test_cancelled_fetch_closes_its_connection() -> None:
    gone = trio.Event()

    async def script(visitor: Visitor) -> None:
        await visitor.request()
        nursery.cancel_scope.cancel()
        await visitor.gone()
        gone.set()

    async with scripted(script) as server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(HttpFetcher(HERE).fetch, get(server.url))
        await gone.wait()
