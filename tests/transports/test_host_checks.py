"""Which origins and Host headers are let in."""

from __future__ import annotations

import pytest

from trio_mcp.transports.host_checks import HostChecks, host_checks_for, is_loopback


@pytest.mark.parametrize(
    ("allowed", "origin", "let_in"),
    [
        ("https://app.example", "https://app.example", True),
        ("https://app.example", "HTTPS://App.Example", True),
        ("https://app.example", "https://app.example:8443", False),
        ("https://app.example:*", "https://app.example:8443", True),
        ("https://app.example:*", "https://app.example", True),
        ("https://app.example:*", "https://app.example.evil", False),
        ("https://app.example:*", "https://app.example:1.evil", False),
        ("https://app.example", "http://app.example", False),
        ("null", "null", True),
        ("https://app.example", "null", False),
        ("https://app.example", "", False),
    ],
)
def test_origins(allowed: str, origin: str, let_in: bool) -> None:
    checks = host_checks_for("127.0.0.1", [allowed], None)
    assert checks.allows_origin(origin) == let_in


@pytest.mark.parametrize(
    ("allowed", "host", "let_in"),
    [
        ("mcp.example", "mcp.example", True),
        ("mcp.example", "MCP.example:99", True),
        ("mcp.example:99", "mcp.example:99", True),
        ("mcp.example:99", "mcp.example:98", False),
        ("mcp.example", "mcp.example.evil", False),
        ("mcp.example", "mcp.example:1@evil", False),
        ("[::1]", "[::1]:8765", True),
        ("mcp.example", "", False),
    ],
)
def test_hosts(allowed: str, host: str, let_in: bool) -> None:
    assert host_checks_for("127.0.0.1", None, [allowed]).allows_host(host) == let_in


@pytest.mark.parametrize(("host", "header"), [("127.0.0.2", "127.0.0.2:8765"), ("::1", "[::1]:8765")])
def test_a_server_is_reached_under_the_loopback_address_it_listens_on(host: str, header: str) -> None:
    assert host_checks_for(host, None, None).allows_host(header)
    assert not host_checks_for("127.0.0.1", None, None).allows_host("127.0.0.2:8765")


def test_any() -> None:
    checks = host_checks_for("0.0.0.0", "*", "*")
    assert checks == HostChecks("*", "*")
    assert checks.allows_origin("null")
    assert checks.allows_host("whatever")


def test_a_string_is_no_list() -> None:
    with pytest.raises(ValueError, match="lists of strings"):
        host_checks_for("127.0.0.1", "https://app.example", None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "only_us"),
    [
        *[(host, True) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")],
        *[(host, False) for host in ("0.0.0.0", "::", None, "mcp.example", "")],
    ],
)
def test_what_only_this_machine_reaches(host: str | None, only_us: bool) -> None:
    assert is_loopback(host) == only_us
