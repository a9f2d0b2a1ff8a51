"""Who calls, by address, as the connection or a proxy that is believed tells it."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import memory_stream_pair

from trio_mcp import TrustedProxies
from trio_mcp.concurrency.fair_share import Caller, Callers
from trio_mcp.serving import callers
from trio_mcp.serving.callers import CallersByAddress

PROXIES = TrustedProxies(["10.0.0.0/8", "192.0.2.1", "fd00::/8"])


def caller(address: str | None, proxies: TrustedProxies | None = None, principal: Any = None, **headers: str) -> Any:
    """Return the key of whoever sends a request from ``address``; underscores in names of headers stand for hyphens."""
    hop = CallersByAddress(Callers(), proxies).hop_at(address)
    return hop.caller(principal, {name.replace("_", "-"): value for name, value in headers.items()}).key


def at(address: str) -> tuple[str, str]:
    return "address", address


@pytest.mark.parametrize(
    ("address", "party"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1::/56"),
        ("2001:db8:1:ff:3:4:5:6", "2001:db8:1::/56"),
        ("2001:db8:1:100:3:4:5:6", "2001:db8:1:100::/56"),
        ("fe80::1%eth0", "fe80::/56"),
    ],
)
def test_anonymous_caller_is_identified_by_its_ipv4_address_or_ipv6_network(address: str, party: str) -> None:
    assert caller(address) == at(party)


def test_requests_of_one_principal_from_different_client_addresses_have_one_caller() -> None:
    assert caller("203.0.113.9", principal=("issuer", "ada")) == ("principal", ("issuer", "ada"))
    assert caller("10.0.0.1", PROXIES, ("issuer", "ada"), x_forwarded_for="1.2.3.4") == (
        "principal",
        ("issuer", "ada"),
    )


def test_requests_of_different_principals_on_one_connection_have_different_callers() -> None:
    hop = CallersByAddress(Callers()).hop_at("203.0.113.9")
    ada = hop.caller("ada", {})
    assert hop.caller("ada", {}) is ada
    assert hop.caller("eve", {}).key == ("principal", "eve")
    assert hop.caller(None, {}).key == at("203.0.113.9")
    assert hop.caller("ada", {}).key == ("principal", "ada")


def test_connections_from_the_same_client_address_share_one_caller_object() -> None:
    there = CallersByAddress(Callers())
    first, second = there.hop_at("203.0.113.9"), there.hop_at("203.0.113.9")
    assert first.here is second.here
    first.here.requests = 1
    kept: Caller | None = first.here
    del first, second
    assert there.hop_at("203.0.113.9").here is kept
    kept = None
    assert there.hop_at("203.0.113.9").here.requests == 0


def test_each_connection_without_an_address_is_treated_as_a_separate_caller() -> None:
    there = CallersByAddress(Callers())
    stream, _ = memory_stream_pair()
    first, second = there.hop(stream), there.hop_at(None)
    assert first.here is not second.here
    assert (first.here.key, second.here.key) == (None, None)
    assert first.caller(None, {"x-forwarded-for": "1.2.3.4"}) is first.here


async def test_caller_address_is_the_peer_address_of_the_accepted_socket() -> None:
    there, hops = CallersByAddress(Callers()), list[Any]()
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port: int = listener.socket.getsockname()[1]
    stream = await trio.open_tcp_stream("127.0.0.1", port, local_address="127.0.0.3")
    accepted = await listener.accept()
    hops.append(there.hop(accepted))
    assert hops[0].here.key == at("127.0.0.3")
    for each in (stream, accepted, listener):
        await each.aclose()
    assert there.hop(accepted).here.key is None, "a socket that is closed has no other end"


@pytest.mark.parametrize(
    ("header", "client"),
    [
        ("203.0.113.9", "203.0.113.9"),
        ("203.0.113.9, 10.1.2.3", "203.0.113.9"),
        ("1.2.3.4, 203.0.113.9,10.1.2.3 , 192.0.2.1", "203.0.113.9"),  # what the client itself has written first
        ("10.9.9.9, 203.0.113.9, 10.1.2.3", "203.0.113.9"),
        ("10.1.2.3, 10.1.2.4", "10.1.2.3"),  # a client in the network of the proxies
        ("203.0.113.9:4711", "203.0.113.9"),
        ("[2001:db8:1:2::9]:4711", "2001:db8:1::/56"),
        ("2001:db8:1:2::9", "2001:db8:1::/56"),
        ("::ffff:203.0.113.9", "203.0.113.9"),
        ("203.0.113.9, unknown", "10.0.0.1"),  # the proxy does not know: its word is not taken for what is before
        ("unknown, 10.1.2.3", "10.1.2.3"),
        ("", "10.0.0.1"),
        (" , ", "10.0.0.1"),
        ("x" * 10_000, "10.0.0.1"),
        (",".join(["203.0.113.9", *["10.1.2.3"] * 5000]), "10.1.2.3"),  # no more than some proxies are looked at
    ],
)
def test_x_forwarded_for_header_of_a_trusted_proxy_is_read_from_right_to_left(header: str, client: str) -> None:
    assert caller("10.0.0.1", PROXIES, x_forwarded_for=header) == at(client)


@pytest.mark.parametrize(
    ("header", "client"),
    [
        ("for=203.0.113.9;proto=https;by=10.0.0.1", "203.0.113.9"),
        ('proto=https; For="[2001:db8:1:2::9]:4711"', "2001:db8:1::/56"),
        ('for=1.2.3.4, for="203.0.113.9:80", for=10.1.2.3', "203.0.113.9"),
        ('for="1.2.3.4, for=203.0.113.9', "203.0.113.9"),  # a quote that a client has opened and not closed
        ("for=_hidden", "10.0.0.1"),
        (";" * 15_000 + "for=203.0.113.9", "10.0.0.1"),
        ("proto=https", "10.0.0.1"),
    ],
)
def test_forwarded_header_of_a_trusted_proxy_is_read(header: str, client: str) -> None:
    proxies = TrustedProxies(["10.0.0.0/8"], header="Forwarded")
    assert caller("10.0.0.1", proxies, forwarded=header) == at(client)


def test_too_long_forwarded_addresses_are_not_cached() -> None:
    kept = callers._short_address.cache_info().currsize
    for number in range(3):
        assert caller("10.0.0.1", PROXIES, x_forwarded_for=f"{number}" * 1000) == at("10.0.0.1")
    assert callers._short_address.cache_info().currsize - kept <= 1, "that of the proxy"


def test_trusted_proxy_can_have_a_configured_client_address_header() -> None:
    proxies = TrustedProxies(["10.0.0.1"], "X-Real-IP")
    assert caller("10.0.0.1", proxies, x_real_ip="203.0.113.9", x_forwarded_for="1.2.3.4") == at("203.0.113.9")
    assert caller("10.0.0.1", proxies) == at("10.0.0.1")


@pytest.mark.parametrize("proxies", [PROXIES, None])
def test_forwarded_headers_of_untrusted_peers_are_ignored(proxies: TrustedProxies | None) -> None:
    assert caller("203.0.113.9", proxies, x_forwarded_for="1.2.3.4") == at("203.0.113.9")


def test_trusted_proxy_can_connect_over_a_unix_socket() -> None:
    assert caller(None, TrustedProxies(["unix"]), x_forwarded_for="203.0.113.9") == at("203.0.113.9")
    assert caller(None, TrustedProxies(["10.0.0.1"]), x_forwarded_for="203.0.113.9") is None


@pytest.mark.parametrize(
    ("networks", "error"), [("10.0.0.1", TypeError), (["proxy"], ValueError), (["10.0.0.1/8"], ValueError)]
)
def test_invalid_trusted_proxy_network_raises_an_error_with_instructions(networks: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match=r"write|10\.0\.0\.0/8"):
        TrustedProxies(networks)
