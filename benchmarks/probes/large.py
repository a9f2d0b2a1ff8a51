"""Echoes of 4 MiB, one at a time. What counts is the processor time: the wall has the driver's own in it."""

from __future__ import annotations

from ..driver import messages
from ..driver.checks import check
from ..driver.http_session import HttpSession
from ..driver.session import Session
from .calling import MeasuredClient
from .echoing import sequential

__all__ = ["called_large", "large", "posted_large"]

_SIZE = 4 * 2**20
_COUNT = 20


def _figures(cpu: float) -> dict[str, float]:
    return {"large_cpu": cpu / _COUNT * 1e3}


def large(session: Session) -> dict[str, float]:
    """By a server, over its standard input and output."""
    return _figures(sequential(session, [f"{number:08}".ljust(_SIZE, "x") for number in range(_COUNT)])[1])


def posted_large(session: HttpSession) -> dict[str, float]:
    """By a server, in a POST each."""
    text = "x" * _SIZE
    with session.connect() as connection:
        session.echo(connection)
        cpu = session.child.cpu()
        for _ in range(_COUNT):
            request_id = next(session.ids)
            (reply,) = connection.ask(session.call(request_id, "echo", {"text": text})).messages()
            check(messages.text(reply, request_id) == text, True, "an echo")
        return _figures(session.child.cpu() - cpu)


def called_large(client: MeasuredClient) -> dict[str, float]:
    """For a client, over pipes."""
    return _figures(client.order(f"calls {_COUNT} 1 {_SIZE}", _COUNT)[1])
