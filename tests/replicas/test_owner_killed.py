"""The replica that runs a handler is killed: its client is told, or another replica goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from tests.fleet.redis_server import RedisServer
from tests.patience import PATIENCE
from tests.replicas.fleet import Fleet, call_pid, fleet
from tests.reverse_proxies.proxies import NGINX

from trio_mcp import PeerError

REPLICA_LOST = -31003


def kill(replicas: Fleet, pid: int) -> None:
    (victim,) = [replica for replica in replicas.replicas if replica.pid == pid]
    victim.kill()


async def test_sessions_of_a_killed_replica_continue_at_other_replicas(
    tmp_path: Path,
) -> None:
    with RedisServer(tmp_path) as redis, trio.fail_after(PATIENCE):
        async with fleet(tmp_path, NGINX, redis) as replicas:
            await check_session(replicas)
            await check_parked(replicas)


async def check_session(replicas: Fleet) -> None:
    """A call of a session ends with an error that says why, wherever its stream is resumed; the session stays."""
    async with replicas.client("legacy") as client, trio.open_nursery() as nursery:
        begun, ended = trio.Event(), trio.Event()
        session = (await client.call_tool("session")).text

        async def hang() -> None:
            with pytest.raises(PeerError) as caught:
                await client.call_tool("hang", {"name": "owned"}, on_progress=lambda _: begun.set())
            assert caught.value.code == REPLICA_LOST
            ended.set()

        nursery.start_soon(hang)
        await begun.wait()
        _, owner = await replicas.until_told("hang:owned")
        kill(replicas, int(owner))
        seen = {await call_pid(client) for _ in range(12)}
        assert int(owner) not in seen
        assert len(seen) == 3
        await ended.wait()
        assert (await client.call_tool("session")).text == session


async def check_parked(replicas: Fleet) -> None:
    """A modern call whose handler waited for answers ends when they come; one that can be replayed goes on."""
    asked = len(replicas.told("asked"))

    def answer(_: Any) -> dict[str, Any]:
        (owner,) = replicas.told("asked")[-1]
        kill(replicas, int(owner))
        return {"name": "Ada"}

    async with replicas.client(elicitation=answer) as client:
        with pytest.raises(PeerError) as caught:
            await client.call_tool("ask")
        assert caught.value.code == REPLICA_LOST
        result = (await client.call_tool("ask_anywhere")).text
    owners = [int(words[0]) for words in replicas.told("asked")[asked:]]
    pid, _, name = result.partition(" ")
    assert (name, int(pid)) == ("Ada", owners[-1])
    assert len(owners) == 3
    assert owners[1] != owners[2]
