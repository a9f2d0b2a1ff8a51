"""What a URL says of its server, and which URLs say nothing."""

from __future__ import annotations

import pytest
from tests.long_names import LONGEST, ODD, given_to_codecs

from trio_mcp.transports.http_client.client import HttpClient
from trio_mcp.transports.http_client.origins import Origin, split_url


@pytest.mark.parametrize(
    ("url", "origin", "target"),
    [
        ("http://127.0.0.1:8000/mcp", Origin("http", "127.0.0.1", 8000), "/mcp"),
        ("HTTP://Example.COM", Origin("http", "example.com", 80), "/"),
        ("https://example.com?a=b", Origin("https", "example.com", 443), "/?a=b"),
        ("https://example.com:443/a%20b?c#".rstrip("#"), Origin("https", "example.com", 443), "/a%20b?c"),
        ("http://[::1]:80/", Origin("http", "::1", 80), "/"),
        ("http://b\u00fccher.example/", Origin("http", "xn--bcher-kva.example", 80), "/"),
    ],
)
def test_url_is_split_into_origin_and_target(url: str, origin: Origin, target: str) -> None:
    assert split_url(url) == (origin, target)


@pytest.mark.parametrize(
    ("url", "authority", "address"),
    [
        ("http://example.com", "example.com", "example.com:80"),
        ("https://example.com", "example.com", "example.com:443"),
        ("https://example.com:80", "example.com:80", "example.com:80"),
        ("http://[::1]", "[::1]", "[::1]:80"),
        ("http://[::1]:8000", "[::1]:8000", "[::1]:8000"),
    ],
)
def test_url_authority_contains_the_port_only_if_the_port_is_not_the_default(
    url: str, authority: str, address: str
) -> None:
    origin, _ = split_url(url)
    assert (origin.authority, origin.address) == (authority, address)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/mcp",
        "example.com/mcp",
        "ws://example.com/",
        "http://",
        "http:///mcp",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:x/",
        "http://example.com/a b",
        "http://example.com/\u00fc",
        "http://example.com/a\r\nEvil: x",
        "http://exa mple.com/",
        "http://a..b/",
        "http://" + "a" * 64 + "/",
        "http://%65xample.com/",
        "http://[::1/",
        "http://[::x]/",
        "http://" + "\u00fc" * 64 + "/",
        "http://" + "a." * 130 + "/",
        "http://[fe80::1%25eth0]/",
        "http://example.com/#part",
        "http://example.com/#",
    ],
)
def test_invalid_url_raises_value_error(url: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        split_url(url)


@pytest.mark.parametrize("letters", ["\u00fc" * 8000, ODD * 8000, "a" * 8000])
@pytest.mark.parametrize(
    "form", ["https://{}", "https://{}/mcp", "https://{}:80/", "HTTPS://a.{}?b", "//{}/", "{}://a/"]
)
def test_host_name_beyond_the_length_limit_is_refused_before_it_is_encoded(
    letters: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths = given_to_codecs(monkeypatch)
    with pytest.raises(ValueError, match=r"like http|not a valid host name"):
        split_url(form.format(letters))
    assert max(lengths, default=0) <= LONGEST


def test_url_with_a_leading_space_raises_value_error() -> None:
    with pytest.raises(ValueError, match="like http"):
        split_url(" https://example.com/mcp")


def test_host_name_longer_than_253_characters_raises_value_error() -> None:
    name = "a." * 126 + "a"
    assert split_url(f"http://{name}/")[0].host == name
    assert split_url(f"http://{name}.:65535/")[0].host == f"{name}."
    for long in (f"{name}a", f"{name}aa."):
        with pytest.raises(ValueError, match="not a valid host name"):
            split_url(f"http://{long}/")


@pytest.mark.parametrize(
    "url",
    [
        "http://user:secret@example.com/",
        "ftp://user:secret@example.com/",
        "user:secret@a",
        "http://user:secret@exa mple:x/",
    ],
)
def test_url_with_a_password_raises_value_error_without_quoting_the_password(url: str) -> None:
    with pytest.raises(ValueError, match=r"neither a user|like http") as refused:
        HttpClient(url)
    assert "secret" not in str(refused.value)
