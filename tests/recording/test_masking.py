"""Secrets in messages, by the names of their keys and by their forms."""

from __future__ import annotations

import time
from typing import Any

import pytest

from trio_mcp.recording.masking import Masking, names_secret

JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhbm4ifQ.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("Authorization: Bearer abcdefgh1234", "abcdefgh1234"),
        ("Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("https://ann:hunter2@example.com/path", "ann:hunter2"),
        ("postgres://ann:hun%40ter2@db:5432/x", "hun%40ter2"),
        ("https://example.com/?access_token=s3cr3tvalue&x=1", "s3cr3tvalue"),
        ("https://example.com/cb?code=SplxlOBeZQQYbYS6WxSbIA", "SplxlOBeZQQYbYS6WxSbIA"),
        ("https://example.com/#id_token=s3cr3tvalue", "s3cr3tvalue"),
        (f"the token is {JWT}", JWT),
        ("ghp_" + "a1" * 18, "a1" * 18),
        ("sk-proj-" + "b2" * 18, "b2" * 18),
        ("AKIA" + "ABCD" * 4, "ABCD" * 4),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA\n-----END RSA PRIVATE KEY-----", "MIIEpAIBAAKCAQEA"),
    ],
)
def test_a_secret_in_a_text_is_masked_and_nothing_around_it(text: str, secret: str) -> None:
    masked = Masking().masked({"content": [{"text": f"before {text} after"}]})["content"][0]["text"]
    assert secret not in masked
    assert "masked:" in masked
    assert masked.startswith("before ")
    assert masked.endswith(" after")


@pytest.mark.parametrize(
    "text",
    [
        "https://example.com/path?q=code&page=2",
        "mail ann@example.com",
        "the basic idea",
        "bearer of news",
        "a skeleton-key_is-no-key",
        "file:///tmp/a@b",
    ],
)
def test_a_text_without_a_secret_stays(text: str) -> None:
    assert Masking().masked(text) == text


@pytest.mark.parametrize(
    ("headers", "hidden"),
    [
        ({"Authorization": "Bearer x"}, True),
        ({"X-API-Key": "k"}, True),
        ({"Cookie": "a=b"}, True),
        ({"Accept": "b"}, False),
    ],
)
def test_arguments_named_like_secrets_are_masked_wherever_they_stand(headers: dict[str, str], hidden: bool) -> None:
    ((key, value),) = headers.items()
    assert names_secret(key) is hidden
    masked: Any = Masking().masked({"params": {"arguments": {"request": {"headers": headers}}}})
    assert (masked["params"]["arguments"]["request"]["headers"][key] == value) is not hidden


def test_a_text_made_to_be_slow_is_searched_in_little_time() -> None:
    texts = [
        "eyJ" * 40_000,
        "http://" + "a" * 100_000,
        "?token" * 20_000,
        "-----BEGIN PRIVATE KEY-----" * 4_000,
        "a-" * 60_000,
    ]
    begun = time.process_time()
    for text in texts:
        Masking().masked(text + " @=")
    assert time.process_time() - begun < 10
