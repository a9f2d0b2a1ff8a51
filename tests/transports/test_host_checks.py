"""Which origins and Host headers are let in."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from trio_mcp.transports import host_checks
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
        ("https://app.example:443", "https://app.example", True),
        ("http://app.example:80", "http://app.example", True),
        ("https://app.example:80", "https://app.example", False),
        ("https://app.example:443", "https://app.example:8443", False),
        ("http://[::1]:*", "http://[::1]:8000", True),
        ("http://[0:0:0:0:0:0:0:1]:8000", "http://[::1]:8000", True),
        ("Chrome-Extension://abcdefghijklmnop", "chrome-extension://abcdefghijklmnop", True),
        ("tauri://localhost", "tauri://localhost", True),
        ("http://my_app:3000", "http://my_app:3000", True),
    ],
)
def test_allowed_origins_match_origin_headers_as_documented(allowed: str, origin: str, let_in: bool) -> None:
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
        ("mcp.example:*", "mcp.example", True),
        ("mcp.example:*", "mcp.example:8765", True),
        ("mcp.example:*", "mcp.example.evil:8765", False),
        ("mcp.example:*", "mcp.example:*", False),
        ("[::1]:*", "[::1]:8765", True),
        ("[0:0::1]", "[::1]", True),
        ("localhost", "app.localhost:8000", True),
        ("localhost", "A.b.LocalHost.", True),
        ("localhost:8000", "app.localhost:8000", True),
        ("localhost:8000", "app.localhost:8001", False),
        ("localhost", "applocalhost", False),
        ("localhost", "app.localhost.evil", False),
        ("mcp.example", "app.localhost", False),
        ("127.0.0.1:*", "127.0.0.1:1", True),
        ("mcp.example:443", "mcp.example", True),
        ("mcp.example:80", "mcp.example", True),
        ("mcp.example:8443", "mcp.example", False),
        ("mcp.example:0443", "mcp.example:443", True),
        ("my_app", "my_app:8000", True),
        ("mcp.example.", "mcp.example.", True),
    ],
)
def test_allowed_hosts_match_host_headers_as_documented(allowed: str, host: str, let_in: bool) -> None:
    assert host_checks_for("127.0.0.1", None, [allowed]).allows_host(host) == let_in


@pytest.mark.parametrize(("host", "header"), [("127.0.0.2", "127.0.0.2:8765"), ("::1", "[::1]:8765")])
def test_loopback_address_of_the_listener_is_an_allowed_host(host: str, header: str) -> None:
    assert host_checks_for(host, None, None).allows_host(header)
    assert not host_checks_for("127.0.0.1", None, None).allows_host("127.0.0.2:8765")


def test_asterisk_in_the_allowed_hosts_or_origins_allows_every_value() -> None:
    checks = host_checks_for("0.0.0.0", "*", "*")
    assert checks == HostChecks("*", "*")
    assert checks.allows_origin("null")
    assert checks.allows_host("whatever")


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("*", 'allowed_hosts="\\*", without a list'),
        ("*.example", "each name as a separate entry"),
        ("*:8000", "each name as a separate entry"),
        ("mcp.*", "each name as a separate entry"),
        ("https://mcp.example", 'not contain a scheme; write "mcp.example"'),
        ("https://mcp.example/mcp", 'not contain a scheme; write "mcp.example"'),
        ("mcp.example/mcp", "not contain a path"),
        ("mcp.example/", "not contain a path"),
        ("mcp.example?x=1", "not contain a path"),
        ("user@mcp.example", "not contain a user"),
        ("", "not be empty"),
        (" mcp.example", "not contain spaces"),
        ("mcp.example ", "not contain spaces"),
        ("mcp.example other.example", "not contain spaces"),
        ("mcp.example\n", "not contain spaces"),
        ("mcp.example,other.example", "not a host name"),
        ("mcp.example:0", "a port must be a number from 1 to 65535"),
        ("mcp.example:65536", "a port must be a number from 1 to 65535"),
        ("mcp.example:" + "9" * 5000, "a port must be a number from 1 to 65535"),
        ("mcp.example:", "a port must be a number from 1 to 65535"),
        ("mcp.example:-1", "a port must be a number from 1 to 65535"),
        ("mcp.example:http", "a port must be a number from 1 to 65535"),
        ("mcp.example:**", "a port must be a number from 1 to 65535"),
        (":8000", "not a host name"),
        (".example", "not a host name"),
        ("mcp..example", "not a host name"),
        ("-mcp.example", "not a host name"),
        ("x" * 254, "not a host name"),
        ("::1", 'write "\\[::1\\]"'),
        ("[::1", "in brackets"),
        ("[::1]8000", "in brackets"),
        ("[::1%eth0]", "not an IPv6 address"),
        ("[mcp.example]", "not an IPv6 address"),
        ("bücher.example", "must be ASCII"),
        (b"mcp.example", "list of strings"),
        (None, "list of strings"),
        (8000, "list of strings"),
    ],
)
def test_allowed_host_that_can_match_no_client_raises_and_suggests_a_correction(entry: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"allowed_hosts= has .*matches no client.*{reason}"):
        host_checks_for("127.0.0.1", None, ["localhost", entry])


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ("*", 'allowed_origins="\\*", without a list'),
        ("app.example", "begin with a scheme"),
        ("://app.example", "begin with a scheme"),
        ("https:app.example", "begin with a scheme"),
        ("https://*", "each name as a separate entry"),
        ("https://*.example", "each name as a separate entry"),
        ("*://app.example", "begin with a scheme"),
        ("https://app.example/", "not contain a path"),
        ("https://app.example/page", "not contain a path"),
        ("https://user:password@app.example", "not contain a user"),
        ("https://", "not a host name"),
        ("https://app.example:0", "a port must be"),
        ("https://app.example:99999", "a port must be"),
        ("https://app.example https://other.example", "not contain spaces"),
        ("https://bücher.example", "must be ASCII"),
        ("https://::1", "in brackets"),
        ("", "not be empty"),
        (None, "list of strings"),
    ],
)
def test_allowed_origin_that_can_match_no_page_raises_and_suggests_a_correction(entry: Any, reason: str) -> None:
    with pytest.raises(ValueError, match=f"allowed_origins= has .*matches no client.*{reason}"):
        host_checks_for("127.0.0.1", [entry], None)


def test_empty_allowed_hosts_raise_value_error() -> None:
    with pytest.raises(ValueError, match="allowed_hosts=\\[\\] would refuse every client"):
        host_checks_for("127.0.0.1", None, [])


def test_host_checks_created_from_the_values_of_other_host_checks_equal_them() -> None:
    checks = host_checks_for("127.0.0.1", ["https://App.example:443", "null"], ["MCP.example:*", "other:8000"])
    assert host_checks_for(None, checks.allowed_origins, checks.allowed_hosts) == checks


@pytest.fixture
def log_of_refusals(monkeypatch: pytest.MonkeyPatch) -> str:
    """Let host checks log by a name of their own: threads of earlier tests still write to the logger of the package."""
    name = "refusals of one test"
    monkeypatch.setattr(host_checks, "logger", logging.getLogger(name))
    return name


@pytest.mark.parametrize("value", ["mcp.example", "mcp.example:80", "[::1]:80", "https://app.example"])
def test_error_for_a_refused_host_or_origin_quotes_the_header_if_its_form_is_valid(
    value: str, log_of_refusals: str, caplog: pytest.LogCaptureFixture
) -> None:
    checks = host_checks_for("127.0.0.1", None, None)
    assert repr(value) in checks.refused_host(value)
    assert repr(value) in checks.refused_origin(value)
    refusals = [text for name, _, text in caplog.record_tuples if name == log_of_refusals]
    assert [repr(value) in text for text in refusals] == [True, True]


@pytest.mark.parametrize(
    "value", ["", "user:secret@evil", "x" * 10_000, "a b", "<script>", "Bearer secret", "a\x1b[31m"]
)
def test_error_for_a_refused_host_or_origin_does_not_quote_a_malformed_header(
    value: str, log_of_refusals: str, caplog: pytest.LogCaptureFixture
) -> None:
    checks = host_checks_for("127.0.0.1", None, None)
    answers = [checks.refused_host(value), checks.refused_origin(value)]
    refusals = [text for name, _, text in caplog.record_tuples if name == log_of_refusals]
    assert len(refusals) == 2
    for words in (*answers, *refusals):
        assert f"({len(value)} characters that are not a name)" in words
        assert not value or value not in words


def test_string_instead_of_a_list_of_allowed_origins_or_hosts_raises_value_error() -> None:
    with pytest.raises(ValueError, match="lists of strings"):
        host_checks_for("127.0.0.1", "https://app.example", None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "only_us"),
    [
        *[(host, True) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost")],
        *[(host, False) for host in ("0.0.0.0", "::", None, "mcp.example", "")],
    ],
)
def test_is_loopback_function_returns_true_only_for_addresses_of_this_machine(host: str | None, only_us: bool) -> None:
    assert is_loopback(host) == only_us
