"""A gateway before five servers, one of which dies each second: the calls to the others do not notice.

    python -m examples.five_members

Each server is a process of its own. The list of tools stays whole. A call that the death interrupts fails, and is never
repeated; the next one waits until the server is back.
"""

from __future__ import annotations

import os
import sys
from collections import Counter

import trio

from trio_mcp import Client, PeerError, Server, gateway, open_memory, serve_stdio
from trio_mcp.hosting import MemberDescription, RestartPolicy, open_group
from trio_mcp.types import ALL_QUESTIONS

NAMES = ("ada", "bob", "cid", "dot", "mortal")


async def serve_member(name: str) -> None:
    """Be one of the servers."""
    server = Server(name)

    @server.tool
    async def work(seconds: float) -> str:
        """Work for some seconds."""
        await trio.sleep(seconds)
        return f"done by {os.getpid()}"

    async with trio.open_nursery() as nursery:
        if name == "mortal":
            nursery.start_soon(die)
        await serve_stdio(server)
        nursery.cancel_scope.cancel()


async def die() -> None:
    await trio.sleep(1)
    os._exit(1)


async def call(client: Client, name: str, answers: Counter[str], refusals: Counter[str]) -> None:
    """Call one server again and again."""
    while True:
        try:
            await client.call_tool(f"{name}__work", {"seconds": 0.05})
            answers[name] += 1
        except PeerError as error:
            refusals[f"{name}: {error.message}"] += 1


async def main(seconds: float = 5.0) -> tuple[Counter[str], Counter[str]]:
    """Call all servers through the gateway for some seconds. Return who has answered how often, and what failed."""
    answers, refusals = Counter[str](), Counter[str]()
    restart = RestartPolicy(attempts=float("inf"), first_delay=0.1, max_delay=0.1)
    members = {
        name: MemberDescription([sys.executable, "-m", "examples.five_members", name], restart=restart)
        for name in NAMES
    }
    async with open_group(members, forwards=ALL_QUESTIONS) as group:
        await group.settled()
        async with open_memory(gateway(group)) as client, trio.open_nursery() as nursery:
            for name in NAMES:
                nursery.start_soon(call, client, name, answers, refusals)
            with trio.move_on_after(seconds):
                while True:
                    assert [tool.name async for tool in client.list_tools()] == [f"{name}__work" for name in NAMES]
                    await trio.sleep(0.1)
            nursery.cancel_scope.cancel()
    return answers, refusals


if __name__ == "__main__":
    if len(sys.argv) > 1:
        trio.run(serve_member, sys.argv[1])
    else:
        for counted in trio.run(main):
            print(*(f"{number:5} {what}" for what, number in counted.most_common()), sep="\n")
