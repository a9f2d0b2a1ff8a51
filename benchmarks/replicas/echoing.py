"""What sharing costs a call, and what several replicas answer in a second."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..driver.cores import DRIVER_CORES, on_cores
from ..driver.http_session import HttpSession
from ..probes.posting import posts
from . import ALONE
from .fleet import Fleet, balanced, is_balancer_installed, replicas, session_of
from .redis import RedisProcess, redis

__all__ = ["Figures", "costs", "storages", "throughputs"]

Figures = dict[str, dict[str, float]]
"""By rows, what was found in one round, by columns."""

_WIDTHS = (1, 16)
_SIZES = (1, 2, 4)


@contextmanager
def storages() -> Iterator[tuple[dict[str, str], RedisProcess]]:
    """The storages that a replica may have, by titles."""
    with redis() as store, tempfile.TemporaryDirectory() as folder:
        yield {"alone": ALONE, "Redis": store.url, "SQLite": str(Path(folder, "shared.db"))}, store


def costs(rounds: int, count: int) -> Iterator[Figures]:
    """``count`` echoes each from one connection and from 16 to one server, alone and with each storage, in turn."""
    with on_cores(DRIVER_CORES), storages() as (named, store), replicas(*named.values(), pinned=True) as servers:
        clients = dict(zip(named, servers, strict=True))
        sessions = {title: session_of(each) for title, each in clients.items()}
        for number in range(rounds):
            figures: Figures = {}
            for era, subjects in (("modern", clients), ("legacy", sessions)):
                for width in _WIDTHS:
                    for title in _rotated(list(subjects), number):
                        row = f"{era}, {width} connection{'s' * (width > 1)}: {title}"
                        figures[row] = _cost(subjects[title], count, width, store)
            yield figures


def _rotated(titles: list[str], number: int) -> list[str]:
    first = number % len(titles)
    return titles[first:] + titles[:first]


def _cost(client: HttpSession, count: int, width: int, store: RedisProcess) -> dict[str, float]:
    before = store.commands()
    _, wall, cpu = posts(client, count, width)
    return {"/s": count / wall, "cpu": cpu / count * 1e6, "commands": (store.commands() - before) / count}


def throughputs(rounds: int, count: int) -> Iterator[Figures]:
    """``count`` echoes to 1, 2 and 4 replicas, in turn, from 16 connections for each replica: by the driver's round
    robin, in both eras, and through a balancer."""
    with redis() as store, replicas(*[store.url] * max(_SIZES)) as servers, ExitStack() as stack:
        session = session_of(servers[0])
        subjects: dict[str, tuple[int, HttpSession]] = {}
        for size in _SIZES:
            ports = [each.port for each in servers[:size]]
            subjects[f"{size}: modern"] = size, Fleet.of(servers[0], ports)
            subjects[f"{size}: one legacy session"] = size, Fleet.of(session, ports)
            if is_balancer_installed():
                port = stack.enter_context(balanced(ports))
                subjects[f"{size}: modern, through HAProxy"] = size, Fleet.of(servers[0], [port])
        for number in range(rounds):
            found: Figures = {}
            for title in _rotated(list(subjects), number):
                size, client = subjects[title]
                before = [each.child.cpu() for each in servers]
                _, wall, _ = posts(client, count, size * max(_WIDTHS))
                used = sum(each.child.cpu() - cpu for each, cpu in zip(servers, before, strict=True))
                found[title] = {"/s": count / wall, "cpu": used / count * 1e6}
            yield {title: found[title] for title in subjects}
