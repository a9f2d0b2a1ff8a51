"""Connections are made to addresses that a rule allows, whatever a name says, and says a moment later."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from ipaddress import IPv4Address, IPv6Address, ip_address

import attrs
import pytest
import trio
import trustme
from tests.transports.http_client.scripted import OK, answering, scripted
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp.transports.http_client import dialing
from trio_mcp.transports.http_client.client import HttpClient
from trio_mcp.transports.http_client.connection import RequestNotSent
from trio_mcp.transports.http_client.dialing import connect_where_allowed


@attrs.define
class Names(trio.abc.HostnameResolver):
    """A name server that gives each question the next answer, and the last one for ever."""

    answers: list[list[str]]
    asked: list[object] = attrs.Factory(list)

    async def getaddrinfo(self, host: object, port: object, *_: object) -> object:  # type: ignore[override]
        self.asked.append(host)
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        families = [trio.socket.AF_INET6 if ":" in each else trio.socket.AF_INET for each in found]
        return [(family, 1, 6, "", (each, port)) for family, each in zip(families, found, strict=True)]

    async def getnameinfo(self, *_: object) -> object:  # type: ignore[override]
        raise NotImplementedError


def named(*answers: Sequence[str]) -> Names:
    names = Names([list(answer) for answer in answers])
    trio.socket.set_custom_hostname_resolver(names)
    return names


def only(*allowed: str) -> dialing.AddressRule:
    return lambda address: str(address) in allowed


async def asked(url: str, allows: dialing.AddressRule, context: ssl.SSLContext | None = None) -> bytes:
    async with (
        HttpClient(url, http_proxy=None, allows=allows, ssl_context=context) as client,
        client.request("GET", client.target) as reply,
    ):
        return await reply.read(100)


async def test_host_name_that_resolves_to_a_forbidden_address_raises_request_not_sent() -> None:
    named(["127.0.0.1", "127.0.0.9"])
    async with scripted(answering(OK)) as server:
        with pytest.raises(RequestNotSent) as refused:
            await asked(f"http://a.example:{server.port}/", only("127.0.0.2"))
    assert server.visitors == []
    assert str(refused.value) == (
        "no connection to a.example: the rules of this client forbid the address 127.0.0.1, 127.0.0.9"
    )


async def test_url_with_a_forbidden_address_raises_request_not_sent() -> None:
    async with scripted(answering(OK)) as server:
        with pytest.raises(RequestNotSent, match=r"forbid the address 127\.0\.0\.1"):
            await asked(server.url, only())
        assert await asked(server.url, only("127.0.0.1")) == b"hello"
    assert len(server.visitors) == 1


async def test_http_client_connects_to_the_resolved_address_that_was_checked() -> None:
    # DNS rebinding: the name points to a good address for as long as somebody looks.
    names = named(["127.0.0.2"], ["127.0.0.1"])
    async with scripted(answering(OK)) as forbidden, scripted(answering(OK), host="127.0.0.2") as good:
        with pytest.raises(RequestNotSent, match="Connection refused"):
            await asked(f"http://a.example:{forbidden.port}/", only("127.0.0.2"))
        assert names.asked == [b"a.example"]
        assert forbidden.visitors == good.visitors == []


async def test_client_tries_the_allowed_addresses_of_a_host_name() -> None:
    named(["127.0.0.3", "127.0.0.1", "127.0.0.4"])
    seen: list[IPv4Address | IPv6Address] = []

    def rule(address: IPv4Address | IPv6Address) -> bool:
        seen.append(address)
        return str(address) != "127.0.0.3"

    async with scripted(answering(OK)) as server:
        assert await asked(f"http://a.example:{server.port}/", rule) == b"hello"
    assert seen == [ip_address(f"127.0.0.{last}") for last in (3, 1, 4)]


async def test_http_client_checks_the_address_of_every_new_connection() -> None:
    named(["127.0.0.1"], ["127.0.0.2"])
    async with (
        scripted(answering(OK)) as server,
        HttpClient(f"http://a.example:{server.port}/", http_proxy=None, allows=only("127.0.0.1")) as client,
        client.request("GET", "/") as first,
    ):
        with pytest.raises(RequestNotSent, match="forbid"):
            async with client.request("GET", "/"):
                pass
        assert await first.read(100) == b"hello"


async def test_tls_certificate_is_verified_for_the_host_name_not_the_address() -> None:
    named(["127.0.0.1"])
    authority = trustme.CA()
    serving, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("a.example").configure_cert(serving)
    authority.configure_trust(trusting)
    async with scripted(answering(OK), ssl_context=serving) as server:
        assert await asked(f"https://a.example:{server.port}/", only("127.0.0.1"), trusting) == b"hello"
        with pytest.raises(RequestNotSent, match=r"no TLS connection to b\.example"):
            await asked(f"https://b.example:{server.port}/", only("127.0.0.1"), trusting)


async def test_http_client_does_not_check_the_address_of_its_proxy() -> None:
    async with (
        scripted(answering(OK)) as proxy,
        HttpClient("http://a.example/", http_proxy=proxy.url, allows=only()) as client,
        client.request("GET", "/") as reply,
    ):
        assert await reply.read(100) == b"hello"


# Several addresses


@asynccontextmanager
async def answers_at(**times: float) -> AsyncGenerator[dict[str, float]]:
    """Let addresses answer after as many seconds, those with less than 0 by a failure; the block has when each was
    tried."""
    begun = trio.current_time()
    tried: dict[str, float] = {}
    ours: list[trio.SocketStream] = []

    async def open_tcp_stream(host: str, port: int) -> trio.SocketStream:
        tried[host] = trio.current_time() - begun
        seconds = times[host]
        await trio.sleep(abs(seconds))
        if seconds < 0:
            raise ConnectionRefusedError(111, "refused")
        one, other = trio.socket.socketpair()
        one.close()
        ours.append(trio.SocketStream(other))
        return ours[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dialing.trio, "open_tcp_stream", open_tcp_stream)
        yield tried
    assert all(stream.socket.fileno() == -1 for stream in ours), "all are closed, the winner by the test"


def anything(_: object) -> bool:
    return True


async def test_client_tries_the_next_address_after_250_ms_if_one_does_not_respond(autojump_clock: MockClock) -> None:
    named(["192.0.2.1", "192.0.2.2", "192.0.2.3"])
    async with answers_at(**{"192.0.2.1": 60, "192.0.2.2": 0.1, "192.0.2.3": 0}) as tried:
        (await connect_where_allowed("a.example", 1, anything)).socket.close()
    assert tried == {"192.0.2.1": 0, "192.0.2.2": 0.25}


async def test_client_tries_the_next_address_immediately_after_a_failed_attempt(autojump_clock: MockClock) -> None:
    named(["192.0.2.1", "192.0.2.2"])
    async with answers_at(**{"192.0.2.1": -0.1, "192.0.2.2": 5}) as tried:
        (await connect_where_allowed("a.example", 1, anything)).socket.close()
    assert tried == {"192.0.2.1": 0, "192.0.2.2": 0.1}


async def test_client_uses_a_slow_address_if_no_other_address_answers(autojump_clock: MockClock) -> None:
    named(["192.0.2.1", "192.0.2.2"])
    async with answers_at(**{"192.0.2.1": 9, "192.0.2.2": -1}):
        (await connect_where_allowed("a.example", 1, anything)).socket.close()
    assert trio.current_time() == pytest.approx(9)


async def test_connection_attempts_alternate_between_ipv6_and_ipv4(autojump_clock: MockClock) -> None:
    named(["2001:db8::1", "2001:db8::2", "192.0.2.1", "192.0.2.2"])
    async with answers_at(**{"2001:db8::1": -1, "2001:db8::2": -1, "192.0.2.1": -1, "192.0.2.2": -1}) as tried:
        with pytest.raises(OSError, match="all attempts failed"):
            await connect_where_allowed("a.example", 1, anything)
    assert list(tried) == ["2001:db8::1", "192.0.2.1", "2001:db8::2", "192.0.2.2"]


async def test_connection_that_succeeds_after_a_faster_connection_to_the_host_is_closed(
    autojump_clock: MockClock,
) -> None:
    named(["192.0.2.1", "192.0.2.2"])
    async with answers_at(**{"192.0.2.1": 1, "192.0.2.2": 0.75}):
        (await connect_where_allowed("a.example", 1, anything)).socket.close()


async def test_cancelled_connection_attempt_leaves_no_open_socket(autojump_clock: MockClock) -> None:
    named(["192.0.2.1", "192.0.2.2"])
    async with answers_at(**{"192.0.2.1": 1, "192.0.2.2": 0.75}), trio.open_nursery() as nursery:
        nursery.start_soon(connect_where_allowed, "a.example", 1, anything)
        await wait_all_tasks_blocked()
        await trio.sleep(0.5)
        nursery.cancel_scope.cancel()


async def test_at_most_eight_addresses_of_a_host_name_are_tried(autojump_clock: MockClock) -> None:
    many = [f"192.0.2.{last}" for last in range(100)]
    named(many)
    async with answers_at(**dict.fromkeys(many, -1.0)) as tried:
        with pytest.raises(OSError, match="all attempts failed"):
            await connect_where_allowed("a.example", 1, anything)
    assert len(tried) == 8


async def test_connection_error_that_is_equal_for_all_addresses_of_a_host_is_reported_once() -> None:
    named(["127.0.0.1", "127.0.0.2"])
    with pytest.raises(RequestNotSent) as lost:
        await asked("http://a.example:1/", anything)
    assert str(lost.value) == "no connection to a.example:1: Connection refused"
    assert lost.value.__cause__ is None


def test_failed_host_name_resolution_raises_with_the_message_of_the_system() -> None:
    assert dialing._reasons(OSError(-2, "Name or service not known")) == "Name or service not known"
