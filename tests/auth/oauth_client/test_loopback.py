"""The listener that hears where the browser is sent: one callback, and nothing else."""

from __future__ import annotations

import pytest
import trio
from tests.patience import PATIENCE
from trio.testing import MockClock

from trio_mcp.auth import AuthorizationError
from trio_mcp.auth.oauth_client.browser import AwaitedCallback, LoopbackListener, is_loopback_uri, open_loopback

AUTHORIZE = "https://as.example/authorize?client_id=me&state=st4te"


def port_of(listener: LoopbackListener) -> int:
    return int(listener.redirect_uri.split(":")[2].split("/")[0])


async def said(listener: LoopbackListener, data: str) -> str:
    """What is answered to the bytes of a request."""
    stream = await trio.open_tcp_stream("127.0.0.1", port_of(listener))
    async with stream:
        with trio.fail_after(PATIENCE):
            await stream.send_all(data.encode())
            return b"".join([part async for part in stream]).decode()


async def asked(listener: LoopbackListener, target: str, method: str = "GET", host: str | None = None) -> str:
    host = host or f"127.0.0.1:{port_of(listener)}"
    return await said(listener, f"{method} {target} HTTP/1.1\r\nHost: {host}\r\n\r\n")


async def test_loopback_listener_returns_the_callback_url() -> None:
    answer = AwaitedCallback()
    async with open_loopback(None) as listener:
        listener.expect(AUTHORIZE, answer)
        page = await asked(listener, "/callback?code=c0de&state=st4te")
        assert await answer.wait() == f"{listener.redirect_uri}?code=c0de&state=st4te"
    assert page.startswith("HTTP/1.1 200 ")


async def test_loopback_callback_page_contains_no_script_and_no_text_from_the_request() -> None:
    answer = AwaitedCallback()
    async with open_loopback(None) as listener:
        listener.expect(AUTHORIZE, answer)
        page = await asked(listener, "/callback?code=c0de&state=st4te")
    assert "Content-Security-Policy: default-src 'none'\r\n" in page
    assert "Cache-Control: no-store\r\n" in page
    assert "<script" not in page
    assert "c0de" not in page


@pytest.mark.parametrize(
    ("target", "method", "host"),
    [
        ("/", "GET", None),
        ("/favicon.ico", "GET", None),
        ("/callback/?state=st4te", "GET", None),
        ("/callback?code=x&state=another", "GET", None),
        ("/callback?code=x&state=", "GET", None),
        ("/callback?code=x", "GET", None),
        ("/callback?error=access_denied", "GET", None),
        ("/callback?state=st4te", "POST", None),
        ("/callback?state=st4te", "HEAD", None),
        ("/callback?code=x&state=st4te", "GET", "evil.example"),
        ("/callback?code=x&state=st4te", "GET", "localhost:1"),
    ],
)
async def test_loopback_listener_answers_other_paths_with_404(target: str, method: str, host: str | None) -> None:
    answer = AwaitedCallback()
    async with open_loopback(None) as listener:
        listener.expect(AUTHORIZE, answer)
        assert (await asked(listener, target, method, host)).startswith("HTTP/1.1 404 ")
        assert (await asked(listener, "/callback?code=c0de&state=st4te")).startswith("HTTP/1.1 200 ")
        assert "code=c0de" in await answer.wait()


@pytest.mark.parametrize("data", ["nonsense\r\n\r\n", "GET /callback HTTP/1.1\r\n\r\n", "x" * 70_000, "\x16\x03\x01"])
async def test_malformed_loopback_callback_is_not_answered_with_the_success_page(data: str) -> None:
    async with open_loopback(None) as listener:
        listener.expect(AUTHORIZE, AwaitedCallback())
        stream = await trio.open_tcp_stream("127.0.0.1", port_of(listener))
        async with stream:
            await stream.send_all(data.encode())
            await stream.send_eof()
            with trio.fail_after(PATIENCE):
                page = b"".join([part async for part in stream])
    assert page.startswith(b"HTTP/1.1 404 ")


async def test_loopback_listener_ignores_a_callback_that_arrives_before_the_browser_opens() -> None:
    async with open_loopback(None) as listener:
        assert (await asked(listener, "/callback?code=x")).startswith("HTTP/1.1 404 ")


async def test_loopback_listener_ignores_a_second_callback() -> None:
    answer = AwaitedCallback()
    async with open_loopback(None) as listener:
        listener.expect(AUTHORIZE, answer)
        await asked(listener, "/callback?code=one&state=st4te")
        await asked(listener, "/callback?code=two&state=st4te")
        assert "code=one" in await answer.wait()


async def test_loopback_listener_closes_an_idle_connection(jump_clock: MockClock) -> None:
    async with open_loopback(None) as listener, await trio.open_tcp_stream("127.0.0.1", port_of(listener)) as stream:
        await trio.testing.wait_all_tasks_blocked(0.05)
        jump_clock.jump(11)
        with trio.fail_after(PATIENCE):
            assert await stream.receive_some() == b""


async def test_many_idle_loopback_connections_do_not_block_the_browser(jump_clock: MockClock) -> None:
    answer = AwaitedCallback()
    async with open_loopback(None) as listener, trio.open_nursery() as nursery:
        listener.expect(AUTHORIZE, answer)
        silent = [await trio.open_tcp_stream("127.0.0.1", port_of(listener)) for _ in range(16)]
        await trio.testing.wait_all_tasks_blocked(0.05)
        jump_clock.jump(11)
        nursery.start_soon(asked, listener, "/callback?code=c0de&state=st4te")
        with trio.fail_after(PATIENCE):
            assert "c0de" in await answer.wait()
        for stream in silent:
            await stream.aclose()
        nursery.cancel_scope.cancel()


async def test_loopback_listener_closes_at_the_end_of_its_with_block() -> None:
    async with open_loopback(None) as listener:
        port = port_of(listener)
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream("127.0.0.1", port)


async def test_loopback_listener_uses_a_configured_port() -> None:
    async with open_loopback(None) as listener:
        port = port_of(listener)
    async with open_loopback(f"http://localhost:{port}/oauth/done") as listener:
        answer = AwaitedCallback()
        listener.expect(AUTHORIZE, answer)
        await asked(listener, "/oauth/done?state=st4te", host=f"LOCALHOST:{port}")
        assert await answer.wait() == f"http://localhost:{port}/oauth/done?state=st4te"


async def test_loopback_listener_raises_if_its_port_is_in_use() -> None:
    async with open_loopback(None) as listener:
        with pytest.raises(AuthorizationError, match="cannot listen at the redirect URI"):
            async with open_loopback(listener.redirect_uri):
                pytest.fail("two listeners at one port")


async def test_loopback_listener_reuses_the_previous_redirect_uri_if_its_port_is_free() -> None:
    async with open_loopback(None) as listener:
        former = listener.redirect_uri
        async with open_loopback(None, [former]) as other:
            assert other.redirect_uri != former
    elsewhere = ["https://a.example/callback", "http://localhost/callback", "http://127.0.0.1:1/other"]
    async with open_loopback(None, [*elsewhere, former]) as again:
        assert again.redirect_uri == former


@pytest.mark.parametrize(
    ("uri", "is_one"),
    [
        ("http://127.0.0.1:1/callback", True),
        ("http://localhost:1/callback", True),
        ("http://[::1]:1/callback", True),
        ("http://localhost/callback", False),
        ("https://localhost:1/callback", False),
        ("http://a.example:1/callback", False),
        ("my-app://callback", False),
    ],
)
def test_is_loopback_uri_function_returns_true_only_for_loopback_redirect_uris(uri: str, is_one: bool) -> None:
    assert is_loopback_uri(uri) is is_one
