"""Requests with ``auth=``: each carries a token, and what was refused for want of one is sent again."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from tests.connecting.http.authorizing import Handed, guarded, told_by
from tests.connecting.http.scripted import Answer, Got, legacy, modern, serving, text
from tests.patience import LONG, PATIENCE
from trio.testing import MockClock

from trio_mcp import HTTPError, fail_after_work, open_http
from trio_mcp.auth import AuthorizationError, Bearer
from trio_mcp.auth.credentials import RefusedRequest

CHALLENGE = 'Bearer resource_metadata="https://example.com/r"'


async def as_json(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


async def gets_the_good_one(handed: Handed, request: RefusedRequest) -> None:
    handed.token = "good"


async def gives_up(handed: Handed, request: RefusedRequest) -> None:
    raise AuthorizationError("no token is to be had", code="access_denied")


async def test_every_http_request_contains_the_bearer_token() -> None:
    async with serving(guarded(legacy(as_json))) as server, open_http(server.url, auth=Bearer("good")) as client:
        await client.call_tool("any")
        await server.until("GET")
    assert {got.method for got in server.got} == {"POST", "GET", "DELETE"}
    assert all(got.headers["authorization"] == "Bearer good" for got in server.got)


async def test_request_refused_with_401_is_repeated_unchanged_with_a_new_token() -> None:
    auth = Handed(gets_the_good_one)
    handler = guarded(modern(as_json), www_authenticate=CHALLENGE)
    async with serving(handler) as server, open_http(server.url, auth=auth) as client:
        assert (await client.call_tool("any")).text == "done"
    assert server.names == ["server/discover", "server/discover", "tools/call"]
    assert server.got[0].body == server.got[1].body
    assert [told_by(each) for each in auth.refusals] == [(401, CHALLENGE, (), 1)]
    assert auth.closed == 1


async def test_call_refused_for_insufficient_scope_is_repeated_with_a_new_token() -> None:
    challenge = 'Bearer error="insufficient_scope", scope="write"'
    auth = Handed(gets_the_good_one, "small")
    handler = modern(guarded(as_json, status=403, www_authenticate=challenge))
    async with serving(handler) as server, open_http(server.url, auth=auth) as client:
        assert (await client.call_tool("any")).text == "done"
    assert server.names == ["server/discover", "tools/call", "tools/call"]
    sent = ((b"Authorization", b"Bearer small"),)
    assert [told_by(each) for each in auth.refusals] == [(403, challenge, sent, 1)]


async def test_auth_object_receives_the_number_of_refusals_of_a_repeated_request() -> None:
    async def third_time(handed: Handed, request: RefusedRequest) -> None:
        handed.token = "good" if request.attempt == 3 else "bad"

    auth = Handed(third_time)
    async with serving(modern(guarded(as_json))) as server, open_http(server.url, auth=auth) as client:
        await client.call_tool("any")
        await client.call_tool("any")
    assert [refused.attempt for refused in auth.refusals] == [1, 2, 3]


async def test_auth_object_receives_the_headers_of_every_response() -> None:
    async def then(got: Got, answer: Answer) -> None:
        await answer.json(text(got), dpop_nonce="n-1")

    auth = Handed(gives_up, "good")
    async with serving(modern(then)) as server, open_http(server.url, auth=auth) as client:
        await client.call_tool("any")
    assert [headers.get("dpop-nonce") for headers in auth.answers] == [None, "n-1"]


async def test_call_for_which_no_token_can_be_obtained_fails_without_affecting_other_calls() -> None:
    async def then(got: Got, answer: Answer) -> None:
        if got.message["params"]["name"] == "secret":
            await answer.whole(401)
        else:
            await as_json(got, answer)

    async with serving(modern(then)) as server, open_http(server.url, auth=Handed(gives_up)) as client:
        with pytest.raises(AuthorizationError, match="no token is to be had") as caught:
            await client.call_tool("secret")
        assert caught.value.code == "access_denied"
        assert (await client.call_tool("any")).text == "done"


@pytest.mark.parametrize("era", ["auto", "modern", "legacy"])
async def test_opening_a_client_raises_if_no_token_can_be_obtained(era: Any) -> None:
    async with serving(guarded(modern(as_json))) as server:
        with pytest.raises(AuthorizationError):
            async with open_http(server.url, auth=Handed(gives_up), era=era):
                pytest.fail("opened without a token")
    assert len(server.got) == 1


async def test_status_403_without_a_challenge_raises_http_error() -> None:
    handler = modern(guarded(as_json, status=403))
    async with serving(handler) as server, open_http(server.url, auth=Handed(gives_up)) as client:
        with pytest.raises(HTTPError, match="who are you"):
            await client.call_tool("any")


async def test_status_401_without_auth_option_raises_http_error() -> None:
    handler = modern(guarded(as_json, www_authenticate=CHALLENGE))
    async with serving(handler) as server, open_http(server.url) as client:
        with pytest.raises(HTTPError) as caught:
            await client.call_tool("any")
    assert caught.value.status == 401


@pytest.mark.parametrize("name", ["Authorization", "authorization", "DPoP"])
async def test_authorization_header_combined_with_auth_option_raises_value_error(name: str) -> None:
    with pytest.raises(ValueError, match="auth= sets that header"):
        async with open_http("http://127.0.0.1:1/mcp", headers={name: "x"}, auth=Bearer("good")):
            pytest.fail("opened with two authorizations")


@pytest.mark.parametrize(
    ("url", "resource"),
    [
        ("http://LOCALHOST:{port}/Mcp/?tenant=1", "http://localhost:{port}/Mcp/"),
        ("http://localhost:{port}/", "http://localhost:{port}"),
        ("http://localhost:{port}", "http://localhost:{port}"),
    ],
)
async def test_auth_object_gets_the_canonical_server_url(url: str, resource: str) -> None:
    auth = Handed(gives_up)
    async with serving(modern(as_json)) as server:
        port = server.url.split(":")[2].split("/")[0]
        async with open_http(url.format(port=port), auth=auth):
            pass
    assert auth.urls == [resource.format(port=port)]


async def test_http_session_of_a_legacy_revision_continues_after_the_client_obtains_a_token() -> None:
    auth = Handed(gets_the_good_one)
    async with serving(legacy(guarded(as_json))) as server, open_http(server.url, auth=auth) as client:
        assert (await client.call_tool("any")).text == "done"


async def test_http_session_of_a_legacy_revision_continues_if_the_event_stream_is_refused_with_401() -> None:
    async def handler(got: Got, answer: Answer) -> None:
        if got.method == "GET":
            await answer.whole(401)
        else:
            await legacy(as_json)(got, answer)

    async with serving(handler) as server, open_http(server.url, auth=Handed(gives_up)) as client:
        await server.until("GET")
        assert (await client.call_tool("any")).text == "done"


async def test_client_requests_no_token_if_the_server_refuses_the_delete_request_with_401() -> None:
    async def handler(got: Got, answer: Answer) -> None:
        if got.method == "DELETE":
            await answer.whole(401)
        else:
            await legacy(as_json)(got, answer)

    auth = Handed(gives_up)
    async with serving(handler) as server, open_http(server.url, auth=auth):
        pass
    assert server.names[-1] == "DELETE"
    assert auth.refusals == []


# The user is asked


async def test_call_timeout_is_paused_while_the_user_signs_in(jump_clock: MockClock) -> None:
    async def asks(handed: Handed, request: RefusedRequest) -> None:
        with handed.user_is_asked():
            jump_clock.jump(2 * LONG)
        handed.token = "good"

    auth, handler = Handed(asks), modern(guarded(as_json))
    async with serving(handler) as server, open_http(server.url, auth=auth, call_timeout=LONG) as client:
        assert (await client.call_tool("any")).text == "done"
        auth.token = ""
        with fail_after_work(LONG):
            assert (await client.call_tool("any")).text == "done"


async def test_connect_timeout_is_paused_while_the_user_signs_in(jump_clock: MockClock) -> None:
    async def asks(handed: Handed, request: RefusedRequest) -> None:
        with handed.user_is_asked():
            jump_clock.jump(2 * LONG)
        handed.token = "good"

    auth, handler = Handed(asks), guarded(modern(as_json))
    async with serving(handler) as server, open_http(server.url, auth=auth, connect_timeout=LONG) as client:
        assert (await client.call_tool("any")).text == "done"


async def test_fail_after_work_timeout_around_open_http_is_paused_while_the_user_signs_in(
    jump_clock: MockClock,
) -> None:
    async def asks(handed: Handed, request: RefusedRequest) -> None:
        with handed.user_is_asked():
            jump_clock.jump(2 * LONG)
        handed.token = "good"

    async with serving(guarded(modern(as_json))) as server:
        with fail_after_work(LONG):
            async with open_http(server.url, auth=Handed(asks)) as client:
                assert (await client.call_tool("any")).text == "done"


async def test_connect_timeout_adds_the_time_before_and_the_time_after_the_sign_in(jump_clock: MockClock) -> None:
    async def asks(handed: Handed, request: RefusedRequest) -> None:
        jump_clock.jump(LONG / 2)
        with handed.user_is_asked():
            jump_clock.jump(LONG)
        jump_clock.jump(LONG * 0.6)
        await trio.sleep_forever()

    async with serving(guarded(modern(as_json))) as server:
        with pytest.raises(trio.TooSlowError, match="connect_timeout"):
            async with open_http(server.url, auth=Handed(asks), connect_timeout=LONG):
                pytest.fail("opened too late")


@pytest.mark.parametrize("era", [modern, legacy])
async def test_cancelled_call_cancels_the_wait_for_a_token(era: Any) -> None:
    waiting, left = trio.Event(), trio.Event()

    async def asks(handed: Handed, request: RefusedRequest) -> None:
        waiting.set()
        try:
            await trio.sleep_forever()
        finally:
            left.set()

    async with serving(era(guarded(as_json))) as server, open_http(server.url, auth=Handed(asks)) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.call_tool, "any")
            await waiting.wait()
            nursery.cancel_scope.cancel()
        with trio.fail_after(PATIENCE):
            await left.wait()
    assert "notifications/cancelled" not in server.names
