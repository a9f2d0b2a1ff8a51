"""open_service_nursery: background tasks that serve a body, and leave its exceptions alone."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import trio

__all__ = ["open_service_nursery"]


@asynccontextmanager
async def open_service_nursery(reason: str) -> AsyncGenerator[trio.Nursery]:
    """A nursery whose tasks are cancelled, with ``reason``, when the body is left.

    What the body raises leaves as it is, never inside an ExceptionGroup: callers catch plain types. That is
    why the body's exception does not pass through the nursery but around it.

        async with open_service_nursery("the client was closed") as nursery:
            nursery.start_soon(reader)
            yield client
    """
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        try:
            yield nursery
        except BaseException as error:
            failure = error
        nursery.cancel_scope.cancel(reason=reason)
    if failure is not None:
        try:
            raise failure
        finally:
            del failure
