"""drive carries out the steps of a machine."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from ...errors import AuthorizationError
from ...fetching.exchange import Fetch, Fetcher, FetchFailed
from ..steps import Machine, Step
from .token_source import Visitor

T = TypeVar("T")


async def drive(
    machine: Machine[T],
    fetcher: Fetcher,
    visitor: Visitor | None,
    before_secrets: Callable[[], None],
    settle: Callable[[], Awaitable[None]] | None = None,
) -> T:
    """Return the end of ``machine``, which is closed in any case. ``before_secrets`` is called before each request
    with credentials, codes or tokens: from then on an authorization server may have used up a code or a token.
    ``settle`` keeps what the machine has noted, before each step. Raises `AuthorizationError`."""
    try:
        step = next(machine)
        while True:
            if settle is not None:
                await settle()
            if isinstance(step, Fetch) and step.secrets_of is not None:
                before_secrets()
            try:
                outcome = await _carried_out(step, fetcher, visitor)
            except FetchFailed as error:
                error.__traceback__ = None  # whose frames have the request in them
                step = machine.throw(error)
            else:
                step = machine.send(outcome)
    except StopIteration as end:
        return end.value
    finally:
        machine.close()


async def _carried_out(step: Step, fetcher: Fetcher, visitor: Visitor | None) -> object:
    if isinstance(step, Fetch):
        return await fetcher.fetch(step)
    if visitor is None:
        raise AuthorizationError("a user has to sign in, and there is none")
    return await visitor(step)
