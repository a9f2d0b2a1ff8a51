"""Suites: which probes are run, in which order, on which subjects."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from .driver.http_session import open_legacy, open_modern
from .driver.session import open_pipes, open_socket
from .probes import (
    calling,
    cancelling,
    echoing,
    fairness,
    growth,
    holding,
    large,
    leaving,
    notifying,
    posting,
    starting,
    streaming,
)
from .subjects import (
    BESIDE_ASYNCIO,
    CLIENTS,
    FLOOR,
    LEGACY_HTTP_SERVERS,
    MODERN_HTTP_SERVERS,
    OURS_NAME,
    PIPE_SERVERS,
    SOCKET_SERVERS,
    Subject,
)

__all__ = ["ENOUGH_ROUNDS", "SUITES", "Probe", "Suite"]

Probe = Callable[[Any], dict[str, float]]

ENOUGH_ROUNDS = 13
"""Rounds of which a median ratio repeats within 3 %. The speed of a shared machine can change by two times within
seconds: with five rounds, ratios of the same program were 0.63 to 0.67."""


@dataclass(frozen=True)
class Suite:
    """``open`` gives what the probes are called with. ``only_full``: measured with ``--full`` alone."""

    name: str
    subjects: tuple[Subject, ...]
    open: Callable[[list[str], float], AbstractContextManager[Any]]
    probes: tuple[Probe, ...]
    rounds: int = ENOUGH_ROUNDS
    only_full: bool = False


_OWN = tuple(subject for subject in PIPE_SERVERS if subject.name in (FLOOR, OURS_NAME))
_OWN_HTTP = tuple(subject for subject in MODERN_HTTP_SERVERS if subject.name in (FLOOR, "httptools", OURS_NAME))
_OWN_CLIENTS = tuple(subject for subject in CLIENTS if subject.name in (FLOOR, OURS_NAME))
_POSTS = (posting.post_1, posting.post_16, posting.post_64, streaming.streamed, leaving.leave)

SUITES = (
    Suite(
        "stdio",
        PIPE_SERVERS,
        open_pipes,
        (
            starting.cold_start,
            notifying.notifications,
            notifying.progress,
            echoing.echo,
            echoing.echo_64,
            echoing.sampling,
            cancelling.cancel_one,
            cancelling.cancel_500,
            fairness.flood,
            cancelling.crowd,
        ),
    ),
    Suite(
        "websocket",
        SOCKET_SERVERS,
        open_socket,
        (
            notifying.notifications,
            echoing.echo,
            echoing.echo_64,
            cancelling.cancel_one,
            cancelling.cancel_500,
        ),
    ),
    Suite("http", MODERN_HTTP_SERVERS, open_modern, (starting.cold_start, *_POSTS, holding.listening)),
    Suite("http-legacy", LEGACY_HTTP_SERVERS, open_legacy, (*_POSTS, holding.sessions)),
    Suite("client", CLIENTS, calling.open_client, (calling.calls, calling.calls_64, calling.handled)),
    Suite("crowd", PIPE_SERVERS, open_pipes, (cancelling.crowd_of_all,), 1, only_full=True),
    Suite("growth", _OWN, open_pipes, (growth.widths, growth.crowded, growth.payloads), 3, only_full=True),
    Suite("growth-websocket", SOCKET_SERVERS, open_socket, (growth.connections,), 3, only_full=True),
    Suite("large", _OWN, open_pipes, (large.large,), only_full=True),
    Suite("large-http", _OWN_HTTP, open_modern, (large.posted_large,), only_full=True),
    Suite("http-asgi", BESIDE_ASYNCIO, open_modern, (posting.post_1, posting.post_64, leaving.leave), only_full=True),
    Suite("large-client", _OWN_CLIENTS, calling.open_client, (large.called_large,), only_full=True),
)
