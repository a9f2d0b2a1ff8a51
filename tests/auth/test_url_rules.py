"""Which URLs, and which addresses, a client asks because a stranger said so."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from trio_mcp.auth.fetching import FetchFailed, HttpFetcher, UrlRules, is_public
from trio_mcp.auth.resource_server.verifiers import fetcher_for

REMOTE = UrlRules.for_server("https://mcp.example.com/mcp")
LOCAL = UrlRules.for_server("http://127.0.0.1:8000/mcp")
ON_A_SERVER = UrlRules.for_server("https://mcp.example.com/mcp", public_addresses_only=True)
TESTED_ON_A_SERVER = UrlRules.for_server("http://localhost:8000/mcp", public_addresses_only=True)


def allowed(rules: UrlRules, url: str) -> bool:
    try:
        return str(rules.check(url)) != ""
    except FetchFailed:
        return False


# URLs


@pytest.mark.parametrize(
    ("url", "remote", "local"),
    [
        ("https://as.example/token", True, True),
        ("https://as.example:8443/token?tenant=1", True, True),
        ("https://10.0.0.1/token", True, True),
        ("https://localhost/token", True, True),
        ("http://localhost:9000/token", False, True),
        ("http://127.0.0.1:9000/token", False, True),
        ("http://127.8.9.1/token", False, True),
        ("http://as.localhost:9000/token", False, True),
        ("http://[::1]/token", False, True),
        ("http://as.example/token", False, False),
        ("http://10.0.0.1/token", False, False),
        ("http://localhost.evil.example/token", False, False),
        ("http://127.0.0.1.evil.example/token", False, False),
        ("http://2130706433/token", False, False),
        ("http://0x7f.1/token", False, False),
    ],
)
def test_plain_http_url_is_allowed_only_if_url_and_server_are_both_on_loopback(
    url: str, remote: bool, local: bool
) -> None:
    assert (allowed(REMOTE, url), allowed(LOCAL, url)) == (remote, local)


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://idp:8080/token", True),
        ("http://IDP/token", True),
        ("https://idp/token", True),
        ("http://10.0.0.5:8080/token", True),
        ("http://idp.evil.example/token", False),
        ("http://evil.idp/token", False),
        ("http://localhost/token", False),
        ("http://8.8.8.8/token", False),
        ("http://user@idp/token", False),
    ],
)
def test_plain_http_is_allowed_only_for_trusted_hosts_with_private_addresses(url: str, asked: bool) -> None:
    trusted = frozenset(("idp", "10.0.0.5", "8.8.8.8"))
    rules = UrlRules.for_server("http://idp/mcp", trusted_http_hosts=trusted)
    assert allowed(rules, url) == asked


@pytest.mark.parametrize("public_addresses_only", [False, True])
@pytest.mark.parametrize(
    "server",
    ["https://evil.example/", "https://nas.lan/mcp", "http://evil.example/", "http://localhost/", "https://10.0.0.5/"],
)
def test_untrusted_server_cannot_name_an_http_url_on_a_trusted_host(server: str, public_addresses_only: bool) -> None:
    trusted = frozenset(("nas.lan", "10.0.0.5"))
    rules = UrlRules.for_server(server, public_addresses_only=public_addresses_only, trusted_http_hosts=trusted)
    assert not allowed(rules, "http://nas.lan/admin")
    assert not allowed(rules, "http://10.0.0.5/admin")
    assert allowed(rules, "https://10.0.0.5/admin") is not public_addresses_only


def test_trusted_host_can_be_requested_over_http_and_https() -> None:
    trusted = frozenset(("mcp", "10.0.0.5"))
    rules = UrlRules.for_server("http://mcp/", public_addresses_only=True, trusted_http_hosts=trusted)
    assert allowed(rules, "http://10.0.0.5/")
    assert allowed(rules, "https://10.0.0.5/")
    assert rule_of(rules, "https://mcp/", "10.0.0.9")
    assert not allowed(rules, "https://10.0.0.6/")
    assert not rule_of(rules, "https://as.example/", "10.0.0.5")


def test_token_verifier_can_fetch_urls_on_trusted_hosts_for_any_issuer() -> None:
    fetcher = fetcher_for("https://issuer.example", frozenset(("keys",)))
    assert isinstance(fetcher, HttpFetcher)
    assert allowed(fetcher.rules, "http://keys/jwks")


@pytest.mark.parametrize(
    "server", ["http://localhost:1/mcp", "https://127.0.0.1/", "http://[::1]:8000/mcp", "http://mcp.localhost/"]
)
def test_url_rules_recognize_a_loopback_server_by_its_url(server: str) -> None:
    assert UrlRules.for_server(server).loopback
    assert not REMOTE.loopback


@pytest.mark.parametrize(
    "url",
    [
        *("", "as.example", "//as.example/", "/token", "file:///etc/passwd"),
        *("ftp://as.example/", "javascript:x", "data:,"),
        *("https://", "https:///token", "https://as.example:0/", "https://as.example:99999/", "https://as.example:x/"),
        *("https://user@as.example/", "https://user:pass@as.example/", "https://as.example#part", "https://as.example/#"),
        *("https://as.example\\@evil.example/", "https://as.example/a b", "https://as.example/\n", "https://as.exa\tmple/"),
        *("https://as.example/é", "https://[::1", "https://[fe80::1%25eth0]/", "https://a b/"),
        f"https://{'a' * 64}.example/",
    ],
)  # fmt: skip
def test_malformed_url_is_refused_by_all_url_rules(url: str) -> None:
    for rules in (REMOTE, LOCAL, ON_A_SERVER):
        assert not allowed(rules, url)


def test_url_longer_than_2048_characters_raises_fetch_failed() -> None:
    begin = "https://as.example/"
    assert allowed(REMOTE, begin.ljust(2048, "x"))
    with pytest.raises(FetchFailed, match="refusing to fetch a URL of 2049 characters"):
        REMOTE.check(begin.ljust(2049, "x"))


def test_url_rule_error_hides_the_password_in_the_url() -> None:
    with pytest.raises(FetchFailed, match="neither a user nor a fragment") as refused:
        REMOTE.check("https://user:geheim@as.example/")
    assert "geheim" not in str(refused.value)
    with pytest.raises(
        FetchFailed, match=r"refusing to fetch from http://as\.example: only https is allowed, since the server is not"
    ):
        REMOTE.check("http://as.example/token?x=1")
    with pytest.raises(FetchFailed, match=r"only https is allowed, or http on this machine"):
        LOCAL.check("http://as.example/")


# Addresses

PRIVATE = (
    *("10.0.0.1", "10.255.255.255", "172.16.0.1", "172.31.9.9", "192.168.1.1", "127.0.0.1", "127.9.9.9", "0.0.0.0"),
    *("0.1.2.3", "169.254.1.1", "100.64.0.1", "100.127.255.255", "192.0.2.1", "198.51.100.7", "203.0.113.1"),
    *("198.18.0.1", "198.19.255.255", "192.0.0.8", "192.0.0.9", "192.88.99.1", "224.0.0.1", "239.1.1.1", "240.0.0.1"),
    "255.255.255.255",
    *("::", "::1", "fe80::1", "fe80::1%2", "fec0::1", "fc00::1", "fd12:3456::1", "ff02::1", "ff0e::1", "2001:db8::1"),
    *("3fff::1", "100::1", "4000::1", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::127.0.0.1", "::8.8.8.8"),
    *("64:ff9b::10.0.0.1", "64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::8.8.8.8", "2002:a00:1::1"),
    *("2002:808:808::1", "2001::1", "2001:0:808:808::1", "2001:10::1", "2001:20::1"),
)

METADATA = (
    *("169.254.169.254", "169.254.170.2", "100.100.100.200", "168.63.129.16", "192.0.0.192"),
    *("fd00:ec2::254", "fd20:ce::254", "::ffff:169.254.169.254", "64:ff9b::169.254.169.254", "::ffff:168.63.129.16"),
)

PUBLIC = (
    *("8.8.8.8", "1.1.1.1", "93.184.216.34", "100.63.255.255", "100.128.0.1", "172.32.0.1", "168.63.129.17"),
    *("2606:2800:220:1::1", "2001:4860:4860::8888", "2a00:1450::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8"),
)


@pytest.mark.parametrize("address", [*PRIVATE, *METADATA])
def test_private_or_reserved_address_is_not_treated_as_public(address: str) -> None:
    assert not is_public(ip_address(address))


@pytest.mark.parametrize("address", PUBLIC)
def test_globally_reachable_address_is_treated_as_public(address: str) -> None:
    assert is_public(ip_address(address))


@pytest.mark.parametrize("address", ["10.0.0.1", "169.254.169.254", "[::1]", "[::ffff:10.0.0.1]", "[64:ff9b::7f00:1]"])
def test_url_with_a_private_address_is_refused_if_only_public_addresses_are_allowed(address: str) -> None:
    with pytest.raises(FetchFailed, match="the rules of this client forbid the address"):
        ON_A_SERVER.check(f"https://{address}/")
    assert allowed(REMOTE, f"https://{address}/")


NOT_PUBLIC = [
    *("127.0.0.1", "127.1", "127.0.0.1.", "127.1.", "2130706433", "0x7f000001", "0x7f.1", "017700000001", "0177.0.0.1"),
    *("localhost", "localhost.", "LOCALHOST", "a.localhost", "a.b.localhost.", "0", "0.0.0.0", "0x0", "00"),
    *("\u2460" + "27.0.0.1", "\uff11\uff12\uff17.0.0.1", "127\u30020.0.1", "loc\u00adalhost", "\uff4cocalhost"),
    *(
        "[::1]",
        "[::]",
        "[0:0:0:0:0:0:0:1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
    ),
    *(
        "10.0.0.7",
        "10.7",
        "0xa000007",
        "192.168.1",
        "169.254.169.254",
        "2852039166",
        "[fd00::1]",
        "[fe80::1]",
        "1.2.3.4.5",
    ),
    *("[::ffff:a00:7]", "[2002:7f00:1::]", "100.64.0.1", "168.63.129.16", "224.0.0.1", "255.255.255.255"),
]
"""Hosts that are not of the public internet, in the forms in which resolvers read addresses."""


@pytest.mark.parametrize("host", NOT_PUBLIC)
def test_url_with_a_private_host_in_any_spelling_is_refused_before_name_resolution(host: str) -> None:
    assert not allowed(ON_A_SERVER, f"https://{host}/")
    assert not allowed(ON_A_SERVER, f"http://{host}/")


@pytest.mark.parametrize("url", ["https://8.8.8.8/", "https://as.example/", "https://localhost.example/"])
def test_url_with_a_public_address_or_name_is_allowed_if_only_public_addresses_are_allowed(url: str) -> None:
    assert allowed(ON_A_SERVER, url), "what a name points to is seen when it is connected to"


def rule_of(rules: UrlRules, url: str, address: str) -> bool:
    rule = rules.address_rule(rules.check(url))
    return rule is None or rule(ip_address(address))


@pytest.mark.parametrize(
    ("rules", "url", "address", "may"),
    [
        (REMOTE, "https://as.example/", "10.0.0.1", True),
        (LOCAL, "https://as.example/", "10.0.0.1", True),
        (LOCAL, "http://localhost/", "127.0.0.1", True),
        (LOCAL, "http://localhost/", "::1", True),
        (LOCAL, "http://localhost/", "::ffff:127.0.0.1", True),
        (LOCAL, "http://localhost/", "8.8.8.8", False),
        (LOCAL, "http://localhost/", "10.0.0.1", False),
        (ON_A_SERVER, "https://as.example/", "8.8.8.8", True),
        (ON_A_SERVER, "https://as.example/", "127.0.0.1", False),
        (ON_A_SERVER, "https://as.example/", "10.0.0.1", False),
        (TESTED_ON_A_SERVER, "https://as.example/", "127.0.0.1", True),
        (TESTED_ON_A_SERVER, "https://as.example/", "::ffff:127.0.0.1", True),
        (TESTED_ON_A_SERVER, "https://as.example/", "8.8.8.8", True),
        (TESTED_ON_A_SERVER, "https://as.example/", "10.0.0.1", False),
        (TESTED_ON_A_SERVER, "http://localhost/", "8.8.8.8", False),
    ],
)
def test_addresses_that_a_host_name_resolves_to_are_checked(rules: UrlRules, url: str, address: str, may: bool) -> None:
    assert rule_of(rules, url, address) is may
