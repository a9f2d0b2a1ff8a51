"""The address shown to the user before signing in."""

from __future__ import annotations

import pytest

from trio_mcp.auth import AuthorizationError
from trio_mcp.auth.oauth_client import browser
from trio_mcp.cli.targets import SignIn


@pytest.mark.parametrize("opens", [True, False])
async def test_sign_in_url_with_lookalike_letters_is_shown_in_punycode(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], opens: bool
) -> None:
    async def open_in_browser(url: str) -> None:
        if not opens:
            raise AuthorizationError("no browser can be opened here")

    monkeypatch.setattr(browser, "open_in_browser", open_in_browser)
    on_visit = SignIn(tokens="memory").oauth().on_visit
    assert on_visit is not None
    assert await on_visit("https://p\u0430ypal.example/authorize?state=1") is None
    told = capsys.readouterr().err
    assert "at xn--pypal-4ve.example:\n" in told
    assert "look like others" in told
    assert ("No browser could be opened here: open the address in yours." in told) is not opens
