"""What idle sessions and streams hold, and how soon all streams are told of a change."""

from __future__ import annotations

import re
import select
import time
from contextlib import ExitStack

from ..driver import messages
from ..driver.checks import check
from ..driver.http import Connection, Response
from ..driver.http_session import HttpSession

__all__ = ["listening", "sessions"]

_URI = "note://one"
_CHANGED = re.compile(rb"notifications/resources/updated.*?\n\r?\n", re.DOTALL)
_ID = "io.modelcontextprotocol/subscriptionId"
_WARMING = 20
"""So many before the first look at the memory, so that only what each further one adds is counted."""
_SESSIONS = 400
_STREAMS = 200
_LISTENING = 2000
_LISTENING_TO_PEERS = 500
"""Peers have a bound of 1,024 of them."""


def sessions(session: HttpSession) -> dict[str, float]:
    """Legacy sessions that do nothing; then some of them open their stream. All of them are ended afterwards."""
    child = session.child
    with ExitStack() as stack:
        control = stack.enter_context(session.connect())
        warm = [session.new_session(control) for _ in range(_WARMING)]
        for one in warm:
            _open_stream(stack, one)
        before = child.memory()
        opened = [session.new_session(control) for _ in range(_SESSIONS)]
        idle = child.memory()
        for one in opened[:_STREAMS]:
            _open_stream(stack, one)
        streaming = child.memory()
    with session.connect() as control:
        session.echo(control)
        for one in warm + opened:
            control.send(one.delete())
            check(Response.of(control.whole()).status // 100, 2, "the status of a DELETE")
    return {
        "session_memory": (idle - before) / _SESSIONS / 1024,
        "get_memory": (streaming - idle) / _STREAMS / 1024,
    }


def _open_stream(stack: ExitStack, session: HttpSession) -> None:
    connection = stack.enter_context(session.connect())
    connection.send(session.get())
    connection.wait_for(b"\r\n\r\n")
    check(Response.of(connection.take()).status, 200, "the status of a GET")


def listening(session: HttpSession) -> dict[str, float]:
    """Listen streams that wait for a resource to change, and its change."""
    count = _LISTENING if session.scale == 1 else _LISTENING_TO_PEERS
    child = session.child
    with ExitStack() as stack:
        streams = dict(_listen(stack, session) for _ in range(_WARMING))
        before = child.memory()
        streams |= dict(_listen(stack, session) for _ in range(count - _WARMING))
        memory = child.memory() - before
        control = stack.enter_context(session.connect())  # only now: some servers close what idles for five seconds
        session.echo(control)
        request_id = next(session.ids)
        change = session.call(request_id, "change", {})
        poll = stack.enter_context(select.epoll())
        waiting = {connection.socket.fileno(): connection for connection in streams.values()}
        for fd in waiting:
            poll.register(fd, select.EPOLLIN)
        began = time.perf_counter()
        control.send(change)
        while waiting:
            for fd, _ in poll.poll():
                connection = waiting[fd]
                connection.receive()
                if _CHANGED.search(connection.buffer):
                    poll.unregister(fd)
                    del waiting[fd]
        wall = time.perf_counter() - began
        check(messages.text(Response.of(control.whole()).messages()[-1], request_id), "changed", "the result")
        for subscription, connection in streams.items():
            acknowledged, changed = Response.of(bytes(connection.buffer)).messages()
            method = acknowledged["method"]
            check(method, "notifications/subscriptions/acknowledged", "the first message of a stream")
            check((changed["params"]["uri"], changed["params"]["_meta"][_ID]), (_URI, subscription), "a change")
    figures = {"listen_memory": memory / (count - _WARMING) / 1024, "told_each": wall / count * 1e6}
    return figures | ({"told": wall * 1e3} if count == _LISTENING else {})


def _listen(stack: ExitStack, session: HttpSession) -> tuple[int, Connection]:
    request_id = next(session.ids)
    connection = stack.enter_context(session.connect())
    connection.send(session.listen(request_id, _URI))
    connection.wait_for(b"acknowledged")
    return request_id, connection
