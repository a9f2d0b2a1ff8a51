from __future__ import annotations

import pytest

from trio_mcp.runtime.peer import Headers


def test_headers_are_found_by_their_names_in_any_case() -> None:
    headers = Headers({"User-Agent": "x", "origin": "null"})
    assert headers["user-agent"] == headers["USER-AGENT"] == headers.get("User-Agent") == "x"
    assert "Origin" in headers
    assert "Host" not in headers
    with pytest.raises(KeyError):
        headers["Host"]


def test_headers_are_listed_in_lower_case() -> None:
    assert dict(Headers({"User-Agent": "x"})) == {"user-agent": "x"}
    assert len(Headers({"User-Agent": "x"})) == 1
