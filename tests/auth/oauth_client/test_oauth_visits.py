"""The browser leg of OAuth over real sockets: the listener, the time of the user, and who ends the wait."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import parse_qsl, urlsplit

import pytest
import trio
from tests.auth.oauth_client.protected_world import World, protected
from tests.connecting.http.scripted import Answer, Got, legacy, modern, text
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock, wait_all_tasks_blocked

from trio_mcp import fail_after_work, open_http
from trio_mcp.auth import AuthorizationError, MemoryTokenStorage, OAuth


async def as_json(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


SERVED = modern(as_json)


def browsing(world: World, before: Callable[[str], Awaitable[None]] | None = None) -> Callable[[str], Awaitable[None]]:
    """An ``on_visit`` that opens a browser, which is sent to the listener."""

    async def browse(url: str) -> None:
        if before is not None:
            await before(url)
        callback = urlsplit(await world.visit(url))
        async with await trio.open_tcp_stream("127.0.0.1", callback.port or 0) as stream:
            target = f"{callback.path}?{callback.query}"
            await stream.send_all(f"GET {target} HTTP/1.1\r\nHost: {callback.netloc}\r\n\r\n".encode())
            async for _ in stream:
                pass

    return browse


def redirect_of(url: str) -> str:
    return dict(parse_qsl(urlsplit(url).query))["redirect_uri"]


async def nobody_listens(redirect_uri: str) -> None:
    """Wait until nobody does."""
    with trio.fail_after(PATIENCE):
        while True:
            try:
                await (await trio.open_tcp_stream("127.0.0.1", urlsplit(redirect_uri).port or 0)).aclose()
            except OSError:
                return
            await trio.sleep(0.001)


async def test_browser_redirect_reaches_the_loopback_listener() -> None:
    async with protected(SERVED) as world, open_http(world.url, auth=OAuth(on_visit=browsing(world))) as client:
        assert (await client.call_tool("any")).text == "done"
    (asked,) = world.authorizations
    assert asked["redirect_uri"].startswith("http://127.0.0.1:")
    await nobody_listens(asked["redirect_uri"])


async def test_client_registers_once_even_if_the_user_signs_in_again() -> None:
    storage = MemoryTokenStorage()
    async with protected(SERVED) as world:
        for _ in range(2):
            auth = OAuth(on_visit=browsing(world), storage=storage, refresh=False)
            async with open_http(world.url, auth=auth) as client:
                await client.call_tool("any")
            world.expire()
    assert (len(world.authorizations), world.registrations) == (2, 1)


@pytest.mark.parametrize("era", [modern, legacy])
async def test_cancelled_call_during_sign_in_closes_the_loopback_listener(era: Callable[..., object]) -> None:
    shown = list[str]()
    waiting = trio.Event()

    async def nobody_decides(url: str) -> None:
        shown.append(url)
        waiting.set()

    async with protected(era(as_json)) as world:  # type: ignore[arg-type]
        auth = OAuth(on_visit=world.visit, refresh=False)
        storage = auth.storage
        async with open_http(world.url, auth=auth) as client:
            await client.call_tool("any")
        later = OAuth(on_visit=nobody_decides, refresh=False, storage=storage)
        async with open_http(world.url, auth=later) as client:
            world.expire()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.call_tool, "any")
                await waiting.wait()
                nursery.cancel_scope.cancel()
            await nobody_listens(redirect_of(shown[0]))


async def test_cancelled_connect_during_sign_in_closes_the_loopback_listener() -> None:
    shown = list[str]()
    waiting = trio.Event()

    async def nobody_decides(url: str) -> None:
        shown.append(url)
        waiting.set()

    async def open_it() -> None:
        async with open_http(world.url, auth=OAuth(on_visit=nobody_decides)):
            pytest.fail("opened without a token")

    async with protected(SERVED) as world:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_it)
            await waiting.wait()
            nursery.cancel_scope.cancel()
        await nobody_listens(redirect_of(shown[0]))


async def test_sign_in_time_does_not_count_towards_call_timeouts(jump_clock: MockClock) -> None:
    async def thinks(url: str) -> None:
        jump_clock.jump(1.5 * LONG)
        await wait_all_tasks_blocked()

    async with protected(SERVED) as world:
        auth = OAuth(on_visit=browsing(world, thinks), refresh=False)
        async with open_http(world.url, auth=auth, connect_timeout=LONG, call_timeout=LONG) as client:
            world.expire()
            with fail_after_work(LONG):
                assert (await client.call_tool("any")).text == "done"
            world.expire()
            assert (await client.call_tool("any")).text == "done"
    assert len(world.authorizations) == 3


async def test_sign_in_times_out_if_the_browser_never_returns(jump_clock: MockClock) -> None:
    async def gone(url: str) -> None:
        await wait_all_tasks_blocked()
        jump_clock.jump(LONG + 1)

    async with protected(SERVED) as world:
        with pytest.raises(AuthorizationError, match="did not sign in within"):
            async with open_http(world.url, auth=OAuth(on_visit=gone, sign_in_timeout=LONG)):
                pytest.fail("opened without a token")


async def test_loopback_listener_uses_the_configured_redirect_uri() -> None:
    (free,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = free.socket.getsockname()[1]
    await free.aclose()
    uri = f"http://localhost:{port}/oauth/callback"
    async with protected(SERVED) as world:
        auth = OAuth(on_visit=browsing(world), redirect_uri=uri, client_id="me")
        async with open_http(world.url, auth=auth) as client:
            await client.call_tool("any")
    assert world.authorizations[0]["redirect_uri"] == uri
    assert world.authorizations[0]["client_id"] == "me"


async def test_custom_scheme_redirect_uri_needs_no_loopback_listener() -> None:
    async with protected(SERVED) as world:
        auth = OAuth(on_visit=world.visit, redirect_uri="my-app://callback")
        async with open_http(world.url, auth=auth) as client:
            await client.call_tool("any")
    assert world.authorizations[0]["redirect_uri"] == "my-app://callback"


def test_remote_redirect_uri_without_on_visit_raises_value_error() -> None:
    with pytest.raises(ValueError, match="trio-mcp can't receive the browser's redirect at"):
        OAuth(redirect_uri="https://app.example/callback")


async def test_oauth_over_plain_http_to_a_remote_server_raises_value_error() -> None:
    with pytest.raises(ValueError, match="needs https"):
        async with open_http("http://mcp.example/mcp", auth=OAuth()):
            pytest.fail("opened in plain text")


async def test_two_clients_that_share_one_oauth_object_sign_in_once(jump_clock: MockClock) -> None:
    async def thinks(url: str) -> None:
        await trio.testing.wait_all_tasks_blocked(0.05)
        jump_clock.jump(1.5 * LONG)

    async with protected(SERVED) as world:
        auth = OAuth(on_visit=browsing(world, thinks))

        async def work() -> None:
            async with open_http(world.url, auth=auth, connect_timeout=LONG) as client:
                assert (await client.call_tool("any")).text == "done"

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            nursery.start_soon(work)
    assert len(world.authorizations) == 1
