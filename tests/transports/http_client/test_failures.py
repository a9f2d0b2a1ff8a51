"""Each way in which no connection comes about has an error of its own words, plain and of one type (ERR-02)."""

from __future__ import annotations

import socket
import ssl

import pytest
import trio
import trustme
from tests.patience import LONG
from tests.transports.http_client.scripted import OK, Visitor, answering, scripted
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import ConnectionLost
from trio_mcp.transports.http_client.client import HttpClient, HttpClientBounds
from trio_mcp.transports.http_client.connection import BadResponse, RequestNotSent


async def failure(url: str, context: ssl.SSLContext | None = None) -> ConnectionLost:
    """How a request to ``url`` fails."""
    async with HttpClient(url, ssl_context=context, http_proxy=None) as client:
        with pytest.raises(ConnectionLost) as lost:
            async with client.request("POST", "/", [(b"Authorization", b"Bearer secret")], b"{}"):
                pass
    error = lost.value
    assert "secret" not in f"{error} {error!r}"
    assert error.__cause__ is None
    assert not isinstance(error, BaseExceptionGroup)
    return error


async def test_refused_connection_raises_an_error_with_the_reason() -> None:
    error = await failure("http://127.0.0.1:1")
    assert type(error) is RequestNotSent
    assert str(error) == "no connection to 127.0.0.1:1: Connection refused"


async def test_error_for_a_connection_refused_at_all_addresses_of_a_host_states_the_reason_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class TwoAddresses(trio.abc.HostnameResolver):
        async def getaddrinfo(self, host: object, port: object, *_: object) -> object:  # type: ignore[override]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{i}", 1)) for i in (1, 2)]

        async def getnameinfo(self, *_: object) -> object:  # type: ignore[override]
            raise NotImplementedError

    trio.socket.set_custom_hostname_resolver(TwoAddresses())
    error = await failure("http://twice.example:1")
    assert type(error) is RequestNotSent
    assert str(error) == "no connection to twice.example:1: Connection refused"


async def test_unknown_host_name_raises_an_error_with_the_reason() -> None:
    class NoAddress(trio.abc.HostnameResolver):
        async def getaddrinfo(self, *_: object) -> object:  # type: ignore[override]
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

        async def getnameinfo(self, *_: object) -> object:  # type: ignore[override]
            raise NotImplementedError

    trio.socket.set_custom_hostname_resolver(NoAddress())
    error = await failure("http://nowhere.example")
    assert type(error) is RequestNotSent
    assert str(error) == "no connection to nowhere.example:80: Name or service not known"


async def test_http_client_raises_request_not_sent_after_the_connect_timeout(jump_clock: MockClock) -> None:
    class NoAnswer(trio.abc.HostnameResolver):
        async def getaddrinfo(self, *_: object) -> object:  # type: ignore[override]
            await trio.sleep_forever()

        async def getnameinfo(self, *_: object) -> object:  # type: ignore[override]
            raise NotImplementedError

    trio.socket.set_custom_hostname_resolver(NoAnswer())
    bounds = HttpClientBounds(connect_timeout=LONG)
    async with (
        HttpClient("http://slow.example", http_proxy=None, bounds=bounds) as client,
        trio.open_nursery() as nursery,
    ):

        async def call() -> None:
            with pytest.raises(RequestNotSent, match=r"no connection to slow\.example:80 within 100 s"):
                async with client.request("GET", "/"):
                    pass

        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        jump_clock.jump(LONG)


async def test_tls_handshake_timeout_raises_request_not_sent(jump_clock: MockClock) -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.gone()

    async with scripted(script) as server:
        bounds = HttpClientBounds(connect_timeout=LONG)
        url = server.url.replace("http", "https")
        async with HttpClient(url, bounds=bounds) as client, trio.open_nursery() as nursery:

            async def call() -> None:
                with pytest.raises(RequestNotSent, match="within 100 s"):
                    async with client.request("GET", "/"):
                        pass

            nursery.start_soon(call)
            while not server.visitors:
                await wait_all_tasks_blocked()
            jump_clock.jump(LONG)


async def test_http_client_raises_connection_lost_if_response_headers_do_not_arrive_in_time(
    jump_clock: MockClock,
) -> None:
    asked = trio.Event()

    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(b"HTTP/1.1 200 OK\r\n")
        asked.set()
        await visitor.gone()

    async with scripted(script) as server:
        bounds = HttpClientBounds(head_timeout=LONG)
        async with HttpClient(server.url, bounds=bounds) as client, trio.open_nursery() as nursery:

            async def call() -> None:
                with pytest.raises(ConnectionLost, match="within 100 s") as lost:
                    async with client.request("GET", "/"):
                        pass
                assert type(lost.value) is ConnectionLost, "the server has it"

            nursery.start_soon(call)
            await asked.wait()
            await wait_all_tasks_blocked()
            jump_clock.jump(LONG)


async def test_http_client_sets_no_time_limit_for_the_response_body(jump_clock: MockClock) -> None:
    release = trio.Event()

    async def script(visitor: Visitor) -> None:
        await visitor.request()
        await visitor.send(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n")
        await release.wait()
        await visitor.send(b"hello")

    bounds = HttpClientBounds(head_timeout=LONG)
    async with (
        scripted(script) as server,
        HttpClient(server.url, bounds=bounds) as client,
        client.request("GET", "/") as reply,
    ):
        jump_clock.jump(10 * LONG)
        release.set()
        assert await reply.read(10) == b"hello"


async def test_https_to_a_server_without_tls_raises_an_error_with_the_reason() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.stream.receive_some()
        await visitor.send(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with scripted(script) as server:
        error = await failure(server.url.replace("http", "https"))
    assert type(error) is RequestNotSent
    assert str(error).startswith(f"no TLS connection to 127.0.0.1:{server.port}: [SSL: ")


async def test_server_that_closes_during_the_tls_handshake_raises_request_not_sent() -> None:
    async def script(visitor: Visitor) -> None:
        await visitor.stream.receive_some()

    async with scripted(script) as server:
        error = await failure(server.url.replace("http", "https"))
    assert type(error) is RequestNotSent
    assert str(error).startswith(f"no TLS connection to 127.0.0.1:{server.port}: ")


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


def certified(authority: trustme.CA, *names: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert(*names).configure_cert(context)
    return context


def trusting(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return context


@pytest.mark.parametrize(
    ("name", "trusted", "why"),
    [("127.0.0.1", False, "unable to get local issuer"), ("example.com", True, "IP address mismatch")],
)
async def test_http_client_error_for_an_invalid_server_certificate_contains_the_reason(
    authority: trustme.CA, name: str, trusted: bool, why: str
) -> None:
    async with scripted(answering(OK), ssl_context=certified(authority, name)) as server:
        error = await failure(server.url, trusting(authority) if trusted else None)
    assert type(error) is RequestNotSent
    assert why in str(error)


async def test_plain_http_to_a_tls_server_raises_an_error_with_the_reason() -> None:
    async with scripted(answering(b"\x15\x03\x01\x00\x02\x02\x46")) as server:  # an alert: unexpected message
        error = await failure(server.url)
    assert type(error) is BadResponse
    assert str(error) == f"127.0.0.1:{server.port} responds with TLS: use https://"


async def test_ssl_context_that_negotiates_http_2_raises_request_not_sent(authority: trustme.CA) -> None:
    theirs, ours = certified(authority, "127.0.0.1"), trusting(authority)
    theirs.set_alpn_protocols(["h2", "http/1.1"])
    ours.set_alpn_protocols(["h2", "http/1.1"])
    async with scripted(answering(OK), ssl_context=theirs) as server:
        error = await failure(server.url, ours)
    assert type(error) is RequestNotSent
    assert "h2" in str(error)


def test_http_client_raises_value_error_for_ssl_context_with_an_http_url() -> None:
    with pytest.raises(ValueError, match="https"):
        HttpClient("http://127.0.0.1", ssl_context=ssl.create_default_context())
