"""The keeper of tokens is freed with its client: nothing of ours is left to the garbage collector."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import trio
from tests.auth.oauth_client.protected_world import World, protected
from tests.connecting.http.scripted import Answer, Got, modern, text

from trio_mcp import open_http
from trio_mcp.auth import AuthorizationError, OAuth
from trio_mcp.auth.oauth_client.token_keeper import TokenKeeper


async def as_json(got: Got, answer: Answer) -> None:
    await answer.json(text(got))


@pytest.mark.parametrize("refusal", [None, "invalid_grant", "cut"])
async def test_token_manager_of_a_closed_client_is_freed_without_garbage_collection(
    refusal: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[weakref.ref[Any]]()
    init = TokenKeeper.__init__

    def noted(self: TokenKeeper, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        made.append(weakref.ref(self))

    monkeypatch.setattr(TokenKeeper, "__init__", noted)

    async def use(world: World) -> None:
        async with open_http(world.url, auth=OAuth(on_visit=world.visit)) as client:
            made.append(weakref.ref(client))
            await client.call_tool("any")
            world.expire()
            world.refuse_refresh = refusal
            if refusal == "cut":
                with pytest.raises(AuthorizationError):
                    await client.call_tool("any")
            else:
                await client.call_tool("any")

    gc.collect()
    gc.disable()
    try:
        async with protected(modern(as_json)) as world:
            await use(world)
            await trio.testing.wait_all_tasks_blocked()
            assert [each() for each in made] == [None, None]
    finally:
        gc.enable()
