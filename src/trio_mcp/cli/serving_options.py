"""Options of the commands that serve on addresses of their own, ``run`` and ``gateway``: replicas and the storage that
they share, workers, probes, metrics, logs and recordings."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import attrs
import click
import trio

from ..diagnostics.log import access_log
from .addresses import Addresses, address_options, host_and_port, open_sockets, serving_on
from .group import choice
from .printable import CommandError, log_to_stderr, write_json_lines
from .supervisor import report_in_a_thread
from .token_options import token_options
from .workers import WorkerLink, supervise

if TYPE_CHECKING:
    from ..recording.recorder import Recorder
    from ..server.sharing import SharedStorage


def serving_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of `address_options` and `token_options`, and those about replicas, workers, probes, metrics,
    logs and recordings. The function gets the argument ``addresses``."""

    @click.option(
        "--stateless",
        is_flag=True,
        help="Keep nothing between HTTP requests, so that any of several processes can answer any request: there are "
        "no sessions, and no handler waits for an answer of its client.",
    )
    @click.option(
        "--shared",
        metavar="URL|FILE",
        help="Serve as one of several processes behind a balancer, of which any answers any request: what they have to "
        "know of each other is in the Redis at this URL, like redis://HOST:PORT (extra redis), or, for the processes "
        "of one machine, in this SQLite file, which is made if it does not exist. Tasks are kept there, too. Goes with "
        "--http. A URL with a password belongs in the variable TRIO_MCP_SHARED: others on the machine see the options.",
    )
    @click.option("--health", is_flag=True, help="Answer GET /healthz and GET /readyz, for probes.")
    @operating_options  # the first, since it chooses how lines are written
    @token_options
    @click.option(
        "--workers",
        type=click.IntRange(1, 1000),
        metavar="N",
        help="Serve with N processes, which share the port. One that dies is started again, and SIGHUP replaces them "
        "one after another. Goes with --http, and with --shared or --stateless.",
    )
    @wraps(command)
    def run(addresses: Addresses, shared: str | None, **named: Any) -> int:
        served = attrs.evolve(
            addresses,
            shared=None if shared is None else storage_at(shared),
            **{name: named.pop(name) for name in ("auth", "stateless", "health", "workers", *_OPERATING)},
        )
        return command(addresses=served, **named)

    return address_options(run)


_OPERATING: Final = ("link", "metrics", "access_log", "record")


def operating_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add --metrics, --access-log, --log-format and --record. The function gets the arguments ``link``, ``metrics``,
    ``access_log`` and ``record``, as `Addresses` has them."""

    @click.option(
        "--metrics",
        metavar="[HOST:]PORT",
        help="Serve the page /metrics for Prometheus on a port of its own, one page for all workers (extra "
        "prometheus). Whoever reaches the port can read the page.",
    )
    @click.option("--access-log", is_flag=True, help="Log a line for each response. Goes with --http.")
    @choice("--log-format", ("text", "json"), "text", "Write lines on standard error as text, or as JSON objects.")
    @click.option(
        "--record",
        type=click.Path(file_okay=False, writable=True, path_type=Path),
        metavar="FOLDER",
        help="Record the messages of each session to a file in this folder, which is made if it does not exist. "
        "Arguments and results are readable there.",
    )
    @wraps(command)
    def run(*, metrics: str | None, log_format: str, record: Path | None, **named: Any) -> int:
        link = WorkerLink.from_environment()
        if log_format == "json":
            write_json_lines()
            log_to_stderr(named.get("log_level") or "warning")
        if named["access_log"]:
            access_log.setLevel(logging.INFO)
        is_supervisor = named["workers"] is not None and link is None
        return command(
            link=link,
            metrics=None if metrics is None else host_and_port(metrics),
            record=None if record is None or is_supervisor else _recorder(record),
            **named,
        )

    return run


def supervised(addresses: Addresses, *, reloads: bool = False) -> int | None:
    """Serve with workers, which run this command line again, and return the exit status; `None` where this process is
    to serve. ``reloads``: changed Python files replace the workers."""
    if (addresses.workers is None and not reloads) or addresses.link is not None:
        return None
    count = addresses.workers or 1
    if count > 1 and not addresses.stateless and addresses.shared is None:
        raise click.UsageError(
            "--workers goes with --shared, or with --stateless: requests of a session come to any of the processes"
        )
    if reloads and find_spec("watchfiles") is None:
        raise CommandError("--reload needs the package watchfiles: pip install 'trio-mcp[reload]'")
    serving_on(addresses)  # the options are checked here, and once
    log_to_stderr("warning")

    async def serve() -> int:
        sockets, where = await open_sockets(addresses)
        processes = "a worker" if count == 1 else f"{count} workers"
        return await supervise(
            sockets,
            count,
            lambda server: report_in_a_thread(f"serving {server!r} at {where} with {processes}; press Ctrl-C to stop"),
            os.getcwd() if reloads else None,
            addresses.metrics,
        )

    return trio.run(serve)


def _recorder(folder: Path) -> Recorder:
    """Return the recorder for a new file in ``folder``. Raises `CommandError`."""
    from ..recording.recorder import Recorder

    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--record: {folder} cannot be made: {error.strerror}") from None
    return Recorder(folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.jsonl")


def storage_at(text: str) -> SharedStorage:
    """Return the storage that ``text`` names: a URL of Redis, or the path of a file. Nothing is connected yet.

    Raises `CommandError` for what can be no such storage. The message shows no password of a URL."""
    return _redis(text) if "://" in text else _file(Path(text))


def _redis(url: str) -> SharedStorage:
    if find_spec("coredis") is None:
        raise CommandError("--shared with a URL needs the package coredis: pip install 'trio-mcp[redis]'")
    from ..fleet.storage.redis.storage import RedisStorage

    try:
        return RedisStorage(url)
    except (ValueError, OSError) as error:  # no such URL, or a certificate that cannot be read
        raise CommandError(f"--shared: {error}") from None


def _file(path: Path) -> SharedStorage:
    if path.is_dir():
        raise CommandError(f"--shared: {str(path)!r} is a folder, not a file")
    if not path.parent.is_dir():
        raise CommandError(f"--shared: there is no folder {str(path.parent)!r}")
    from ..fleet.storage.sqlite.storage import SQLiteStorage

    return SQLiteStorage(path)
