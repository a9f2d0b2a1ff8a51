"""trio-mcp over Streamable HTTP: ``trio_mcp_http.py [--token TOKEN]``, for those alone who have the token."""

import sys
import time
from functools import partial

import trio
from marking import listening
from trio_mcp_tools import server

from trio_mcp import serve_http
from trio_mcp.auth import Principal, Protected

token = sys.argv[2:]


async def verify(sent):
    return Principal(subject="driver", expires_at=time.time() + 3600) if [sent] == token else None


def protection():
    return Protected(resource="http://127.0.0.1/mcp", authorization_servers=["http://127.0.0.1:9000"], verifier=verify)


async def main():
    auth = protection() if token else None
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(serve_http, server, port=0, auth=auth))
        listening(listeners[0].socket.getsockname()[1])


trio.run(main)
