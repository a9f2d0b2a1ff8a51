"""Progress tokens (PR-02, PR-09, PRG-01), and keys of _meta."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp.protocol.meta import check_meta_keys
from trio_mcp.state.requests import progress_token_of


@pytest.mark.parametrize("token", [0, -1, 7, "", "0", "7", 9007199254740993, 10**25, "🦑"])
def test_strings_and_integers_are_progress_tokens_even_if_falsy(token: int | str) -> None:
    found = progress_token_of({"progressToken": token})
    assert found == token
    assert type(found) is type(token)


@pytest.mark.parametrize("token", [None, True, False, 1.5, 1.0, [], {}])
def test_json_values_that_are_neither_strings_nor_integers_are_not_progress_tokens(token: Any) -> None:
    assert progress_token_of({"progressToken": token}) is None


@pytest.mark.parametrize("meta", [{}, {"progresstoken": 1}, None, [], "progressToken", 7])
def test_progress_token_is_none_if_meta_has_no_token(meta: Any) -> None:
    assert progress_token_of(meta) is None


@pytest.mark.parametrize(
    "key",
    [
        "retries",
        "a",
        "7",
        "run.id_of-all",
        "progressToken",
        "traceparent",
        "com.example/retries",
        "com.example/",
        "example/x",
        "a-b.c9/x.y",
        "com.example.mcp/x",
        "mcp/x",
        "modelcontextprotocol/x",
        "io.modelcontextprotocol/logLevel",
        "io.modelcontextprotocol/related-task",
    ],
)
def test_meta_key_can_be_a_name_with_or_without_a_prefix(key: str) -> None:
    check_meta_keys({key: 1})


@pytest.mark.parametrize(
    "key",
    [
        "-x",
        "x-",
        "x y",
        "é",
        "x\n",
        "/x",
        "com..example/x",
        ".com/x",
        "com./x",
        "9com/x",
        "com.example-/x",
        "com.ex_ample/x",
        "com.example//x",
        "com.example/x/y",
        "https://example.com/x",
        "com.example/_x",
    ],
)
def test_malformed_meta_key_is_refused(key: str) -> None:
    with pytest.raises(ValueError, match="is not a valid key of _meta"):
        check_meta_keys({"fine": 1, key: 1})


@pytest.mark.parametrize(
    "key",
    ["io.modelcontextprotocol/mine", "dev.mcp/", "org.modelcontextprotocol.api/x", "com.mcp.tools/x", "com.MCP/x"],
)
def test_reserved_meta_prefix_is_refused_and_the_error_suggests_an_alternative(key: str) -> None:
    with pytest.raises(ValueError, match=r"reserved for MCP.*com\.example/"):
        check_meta_keys({key: 1})


def test_check_of_meta_keys_accepts_missing_or_empty_meta() -> None:
    check_meta_keys(None)
    check_meta_keys({})
