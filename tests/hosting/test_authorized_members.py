"""Members that are protected: each is called with the authorization of its address."""

from __future__ import annotations

import trio
from tests.connecting.http.authorizing import Handed, guarded
from tests.connecting.http.scripted import Answer, Got, modern, serving, text
from tests.hosting.members import until
from tests.patience import LONG
from trio.testing import MockClock

from trio_mcp import Address
from trio_mcp.auth import AuthorizationError, Bearer
from trio_mcp.auth.credentials import RefusedRequest
from trio_mcp.hosting import MemberDescription, MemberState, RestartPolicy, open_group

AT_ONCE = RestartPolicy(first_delay=0, attempts=2)


async def as_json(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


async def test_each_server_of_a_group_is_called_with_its_own_token() -> None:
    async with serving(guarded(modern(as_json), "one")) as first, serving(guarded(modern(as_json), "two")) as second:
        members = {
            "first": Address(first.url, auth=Bearer("one")),
            "second": Address(second.url, auth=Bearer("two")),
        }
        async with open_group({name: MemberDescription(where) for name, where in members.items()}) as group:
            for name in members:
                assert (await (await group.client(name)).call_tool("any")).text == "done"
    for server, token in ((first, "one"), (second, "two")):
        assert {got.headers["authorization"] for got in server.got} == {f"Bearer {token}"}


async def test_connect_timeout_is_paused_while_the_user_signs_in(jump_clock: MockClock) -> None:
    async def signs_in(handed: Handed, request: RefusedRequest) -> None:
        with handed.user_is_asked():
            jump_clock.jump(2 * LONG)
        handed.token = "good"

    async with serving(guarded(modern(as_json))) as server:
        description = MemberDescription(Address(server.url, auth=Handed(signs_in)), options={"connect_timeout": LONG})
        async with open_group({"it": description}) as group:
            assert (await (await group.client("it")).call_tool("any")).text == "done"


async def test_group_does_not_retry_a_server_at_which_the_user_failed_to_sign_in() -> None:
    async def declines(handed: Handed, request: RefusedRequest) -> None:
        with handed.user_is_asked():
            await trio.lowlevel.checkpoint()
        raise AuthorizationError("the user declined", code="access_denied")

    auth = Handed(declines)
    async with serving(guarded(modern(as_json))) as server:
        description = MemberDescription(Address(server.url, auth=auth), restart=AT_ONCE)
        async with open_group({"it": description}) as group:
            status = await until(group.watch(), "it", MemberState.FAILED)
    assert isinstance(status.error, AuthorizationError)
    assert len(auth.refusals) == 1


async def test_group_with_a_restart_policy_retries_a_server_whose_token_request_fails() -> None:
    async def has_none(handed: Handed, request: RefusedRequest) -> None:
        if len(handed.refusals) < 3:
            raise AuthorizationError("the authorization server does not answer")
        handed.token = "good"

    auth = Handed(has_none)
    async with serving(guarded(modern(as_json))) as server:
        description = MemberDescription(Address(server.url, auth=auth), restart=AT_ONCE)
        async with open_group({"it": description}) as group:
            status = await until(group.watch(), "it", MemberState.READY)
    assert status.restarts == 2
