"""Detection of the exit of a server whose output another process holds open."""

from __future__ import annotations

from typing import Final

import trio

from ..client.client import Client
from ..client.keep_alive import answers, in_progress
from ..runtime.channel import ConnectionLost
from ..transports.process import ProcessChannel

_SILENCE: Final = 5.0
"""Seconds of silence after which the server is asked."""
_ANSWER_WITHIN: Final = 5.0


@trio.lowlevel.enable_ki_protection  # an interrupt is for the task that uses the client
async def notice_exit(channel: ProcessChannel, client: Client) -> None:
    """Lose the connection when the child has exited and no other process speaks in its place.

    The output stays open while a process that the child has started holds it: a helper, which never speaks, or the
    server itself, which has become a daemon and goes on. After `_SILENCE` seconds of silence a ping decides, or the
    request that replaces ping in the revision: any message received is a sign of life. From then on the server is asked
    again only while a call waits.
    """
    await channel.exited()
    alive = False
    try:
        while True:
            received = channel.received
            await trio.sleep(_SILENCE)
            if channel.received != received or (alive and not in_progress(client.duplex)):
                continue
            alive = await answers(client.ping, _ANSWER_WITHIN) or channel.received != received
            if not alive:
                client.duplex.lose(await channel.obituary("the server is gone"))
                return
    except ConnectionLost:
        return  # the loss was noticed in another way
