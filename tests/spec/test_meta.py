"""Progress tokens (PR-02, PR-09, PRG-01)."""

from __future__ import annotations

from typing import Any

import pytest

from trio_mcp.spec.meta import progress_token_of


@pytest.mark.parametrize("token", [0, -1, 7, "", "0", "7", 9007199254740993, 10**25, "🦑"])
def test_strings_and_integers_are_tokens_even_when_falsy(token: int | str) -> None:
    found = progress_token_of({"progressToken": token})
    assert found == token
    assert type(found) is type(token)


@pytest.mark.parametrize("token", [None, True, False, 1.5, 1.0, [], {}])
def test_anything_else_is_no_token(token: Any) -> None:
    assert progress_token_of({"progressToken": token}) is None


@pytest.mark.parametrize("meta", [{}, {"progresstoken": 1}, None, [], "progressToken", 7])
def test_without_the_member_there_is_no_token(meta: Any) -> None:
    assert progress_token_of(meta) is None
