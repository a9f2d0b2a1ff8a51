"""The visit of a user: who opens the URL, which URLs are opened, and who ends the wait."""

from __future__ import annotations

import logging
import webbrowser
from collections.abc import Generator
from contextlib import contextmanager

import pytest
import trio
from trio.testing import MockClock

from trio_mcp.auth import AuthorizationError
from trio_mcp.auth.oauth_client.browser import Browser, OnVisit, open_in_browser, open_loopback
from trio_mcp.auth.oauth_client.grants import Visit

URL = "https://as.example/authorize?state=st4te"


@contextmanager
def nobody_knows() -> Generator[None]:
    yield


def visit(url: str = URL) -> Visit:
    return Visit(url=url, redirect_uri="http://127.0.0.1:1/callback")


def browser(on_visit: OnVisit) -> Browser:
    return Browser(on_visit, None, 300, nobody_knows)


async def unused(url: str) -> None:
    pytest.fail(f"opened: {url}")


async def test_on_visit_function_can_return_the_callback_url() -> None:
    async def on_visit(url: str) -> str:
        assert url == URL
        return "my-app://callback?code=x"

    assert await browser(on_visit).make(visit()) == "my-app://callback?code=x"


async def test_loopback_listener_accepts_the_callback_while_the_on_visit_function_runs() -> None:
    async def on_visit(url: str) -> None:
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            request = f"GET /callback?state=st4te HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n\r\n"
            await stream.send_all(request.encode())
            await trio.sleep_forever()

    async with open_loopback(None) as listener:
        port = int(listener.redirect_uri.split(":")[2].split("/")[0])
        url = await Browser(on_visit, listener, 300, nobody_knows).make(visit())
    assert url == f"{listener.redirect_uri}?state=st4te"


async def test_on_visit_function_must_return_the_callback_url_if_there_is_no_loopback_listener() -> None:
    async def on_visit(url: str) -> None:
        pass

    with pytest.raises(AuthorizationError, match="on_visit must return the URL that the browser was redirected to"):
        await browser(on_visit).make(visit())


@pytest.mark.parametrize(
    "url",
    [
        "http://as.example/authorize",
        "javascript:alert(1)",
        "file:///etc/passwd",
        "https://user@as.example/",
        "https://as.example/a b",
        "https://as.example/#fragment",
        "-https://as.example/",
        "https://as.example/" + "x" * 20_000,
    ],
)
async def test_sign_in_opens_only_the_authorization_url_in_the_browser(url: str) -> None:
    with pytest.raises(AuthorizationError, match=r"authorization[ _]endpoint"):
        await browser(unused).make(visit(url))


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/authorize", "http://localhost:1/authorize"])
async def test_authorization_url_of_a_local_server_can_use_plain_http(url: str) -> None:
    async def on_visit(url: str) -> str:
        return url

    assert await browser(on_visit).make(visit(url)) == url


async def test_sign_in_times_out_if_the_user_never_allows_or_denies_access(autojump_clock: MockClock) -> None:
    async def on_visit(url: str) -> None:
        await trio.sleep_forever()

    with pytest.raises(AuthorizationError, match="did not sign in within 300 s"):
        await browser(on_visit).make(visit())
    assert trio.current_time() == pytest.approx(300, abs=1)


async def test_call_timeouts_are_paused_only_during_the_browser_visit() -> None:
    seen = list[str]()

    @contextmanager
    def asked() -> Generator[None]:
        seen.append("begun")
        yield
        seen.append("over")

    async def on_visit(url: str) -> str:
        seen.append("visited")
        return url

    await Browser(on_visit, None, 300, asked).make(visit())
    assert seen == ["begun", "visited", "over"]


async def test_exception_in_the_on_visit_function_is_logged_and_fails_the_sign_in(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def on_visit(url: str) -> None:
        raise KeyError("my own")

    with caplog.at_level(logging.ERROR), pytest.raises(AuthorizationError, match="on_visit failed: KeyError"):
        await browser(on_visit).make(visit())
    assert "my own" in caplog.text


async def test_system_browser_is_opened_in_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = list[str]()

    def opens(url: str) -> bool:
        trio.from_thread.check_cancelled()  # raises outside of a thread of trio
        opened.append(url)
        return True

    monkeypatch.setattr(webbrowser, "open", opens)
    await open_in_browser(URL)
    assert opened == [URL]


async def test_sign_in_without_a_browser_raises_an_error_with_instructions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(webbrowser, "open", lambda url: False)
    with pytest.raises(AuthorizationError, match="on_visit="):
        await open_in_browser(URL)
