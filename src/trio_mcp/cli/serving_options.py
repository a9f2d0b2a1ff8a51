"""Options of ``trio-mcp run`` and ``gateway``, which serve on an address: replicas and their shared storage, workers,
health checks, metrics, logs and recordings, and the access tokens of clients."""

from __future__ import annotations

import logging
import os
import re
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
from .group import choice, in_section, repeatable
from .printable import CommandError, log_to_stderr, say, write_json_lines
from .supervisor import report_in_a_thread
from .workers import WorkerLink, supervise

if TYPE_CHECKING:
    from ..auth.resource_server.protected import Protected
    from ..recording.recorder import Recorder
    from ..server.sharing import SharedStorage


_deployment_options: Final = in_section(
    "Deployment options",
    click.option(
        "--stateless",
        is_flag=True,
        help="Keep no state between HTTP requests, so that any process can serve any request: there are no sessions, "
        "and handlers can't wait for answers from their client.",
    ),
    click.option(
        "--shared",
        metavar="URL|FILE",
        help="Serve as one of several replicas behind a load balancer, so that any process can serve any request. They "
        "share state and tasks in Redis, with a URL like redis://HOST:PORT (extra redis), or in an SQLite file on this "
        "machine, which is created if necessary. Needs --http. Put a URL with a password into the environment "
        "variable TRIO_MCP_SHARED, because other users of this machine can see the command line.",
    ),
    click.option("--health", is_flag=True, help="Serve health checks at /healthz and /readyz. Needs --http."),
    click.option(
        "--metrics",
        metavar="[HOST:]PORT",
        help="Serve /metrics for Prometheus on a separate port, for all workers together (extra prometheus). Anyone "
        "who can reach the port can read the metrics.",
    ),
    click.option("--access-log", is_flag=True, help="Log a line for each response. Needs --http."),
    choice("--log-format", ("text", "json"), "text", "Write log lines on standard error as text or as JSON objects."),
    click.option(
        "--record",
        type=click.Path(file_okay=False, writable=True, path_type=Path),
        metavar="FOLDER",
        help="Record the messages of each session to a file in this folder, which is created if necessary. Recordings "
        "contain arguments and results in plain text.",
    ),
    click.option(
        "--workers",
        type=click.IntRange(1, 1000),
        metavar="N",
        help="Serve with N processes that share the port. A process that dies is restarted, and SIGHUP replaces all of "
        "them one after another. Needs --http, and --shared or --stateless.",
    ),
)
_token_options: Final = in_section(
    "Token options",
    repeatable(
        "--issuer", "issuers", "URL", "Require in each HTTP request a JWT token signed by this authorization server."
    ),
    click.option("--resource", metavar="URL", help="URL of the server, as clients write it. Required with --issuer."),
    repeatable("--audience", "audiences", "NAME", "Audience that tokens must have. Default: the URL of --resource."),
    click.option(
        "--jwks",
        metavar="URL|FILE",
        help="JWK set with the keys of the issuer: a URL or a file. Default: the URL in the issuer's metadata.",
    ),
    repeatable("--scope", "scopes", "SCOPE", "Scope that each token must have."),
    click.option(
        "--algorithms",
        metavar="NAMES",
        help="Accepted signature algorithms, such as RS256,ES256. Default: all secure ones.",
    ),
    click.option(
        "--require-typ/--no-require-typ",
        default=True,
        help="Accept only tokens of type at+jwt, or also those of type JWT or without a type. In the latter case, only "
        "--audience distinguishes them from ID tokens.",
    ),
    repeatable(
        "--trust-http",
        "trust_http",
        "HOST",
        "A host of a private network for which --issuer, --resource and --jwks may be http:// URLs. Tokens are then "
        "sent in plain text.",
    ),
)
_TOKENS: Final = ("issuers", "resource", "audiences", "jwks", "scopes", "algorithms", "require_typ", "trust_http")


def serving_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add the options of `address_options`, the token options (--issuer and those that need it), and the options for
    replicas, workers, health checks, metrics, logs and recordings to a command.

    The command's function gets the argument ``addresses``.
    """

    @address_options
    @_deployment_options
    @_token_options
    @wraps(command)
    def run(
        addresses: Addresses, shared: str | None, metrics: str | None, log_format: str, record: Path | None, **rest: Any
    ) -> int:
        link = WorkerLink.from_environment()
        if log_format == "json":  # evaluate --log-format before other options, which may log
            write_json_lines()
            log_to_stderr(rest.get("log_level") or "warning")
        if rest["access_log"]:
            access_log.setLevel(logging.INFO)
        is_supervisor = rest["workers"] is not None and link is None
        served = attrs.evolve(
            addresses,
            link=link,
            metrics=None if metrics is None else host_and_port(metrics),
            record=None if record is None or is_supervisor else _recorder(record),
            auth=_protected(**{name: rest.pop(name) for name in _TOKENS}),
            shared=None if shared is None else storage_at(shared),
            **{name: rest.pop(name) for name in ("stateless", "health", "workers", "access_log")},
        )
        return command(addresses=served, **rest)

    return run


def supervised(addresses: Addresses, *, reloads: bool = False) -> int | None:
    """Serve with worker processes, which run the same command line, and return the exit status. If the user wants no
    workers, return `None`, so that the caller serves in this process.

    With ``reloads``, workers are replaced when a Python file changes.
    """
    if (addresses.workers is None and not reloads) or addresses.link is not None:
        return None
    count = addresses.workers or 1
    if count > 1 and not addresses.stateless and addresses.shared is None:
        raise click.UsageError(
            "--workers needs --shared or --stateless: any worker may get the next request of a session"
        )
    if reloads and find_spec("watchfiles") is None:
        raise CommandError("--reload needs the package watchfiles: pip install 'trio-mcp[reload]'")
    serving_on(addresses)  # check the options here, before any worker starts
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
    """Return a recorder that writes a new file in ``folder``. Raises `CommandError` if the folder can't be created."""
    from ..recording.recorder import Recorder

    try:
        folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise CommandError(f"--record: cannot create {folder}: {error.strerror}") from None
    return Recorder(folder / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}.jsonl")


def storage_at(text: str) -> SharedStorage:
    """Return the shared storage that ``text`` specifies: a Redis URL, or the path of a SQLite file. No connection to
    the storage is opened yet.

    Raises `CommandError` for an invalid value. The message doesn't contain the password of a URL.
    """
    return _redis(text) if "://" in text else _file(Path(text))


def _redis(url: str) -> SharedStorage:
    if find_spec("coredis") is None:
        raise CommandError("--shared with a URL needs the package coredis: pip install 'trio-mcp[redis]'")
    from ..fleet.storage.redis.storage import RedisStorage

    # the URL is invalid, or the certificate can't be read
    with CommandError.instead_of(ValueError, OSError, prefix="--shared: "):
        return RedisStorage(url)


def _file(path: Path) -> SharedStorage:
    if path.is_dir():
        raise CommandError(f"--shared: {str(path)!r} is a folder, not a file")
    if not path.parent.is_dir():
        raise CommandError(f"--shared: there is no folder {str(path.parent)!r}")
    from ..fleet.storage.sqlite.storage import SQLiteStorage

    return SQLiteStorage(path)


def _protected(
    *,
    issuers: tuple[str, ...],
    resource: str | None,
    audiences: tuple[str, ...],
    jwks: str | None,
    scopes: tuple[str, ...],
    algorithms: str | None,
    require_typ: bool,
    trust_http: tuple[str, ...],
) -> Protected | None:
    """Return the `Protected` that the options describe, or `None` without --issuer.

    Raises `click.UsageError` if options can't be combined, and `CommandError` if a value is invalid.
    """
    if not issuers:
        if any((resource, audiences, jwks, scopes, algorithms, not require_typ, trust_http)):
            raise click.UsageError("--resource, --audience, --jwks, --scope and other token options need --issuer")
        return None
    if resource is None:
        raise click.UsageError("--issuer needs --resource: the URL of the server, as clients write it")
    keys = None if jwks is None or "://" in jwks else _key_set(Path(jwks))
    with CommandError.instead_of(ImportError, ValueError):  # ImportError: the extra that checks tokens isn't installed
        from ..auth.resource_server.keys import ASYMMETRIC
        from ..auth.resource_server.protected import Protected
        from ..auth.resource_server.verifiers import JWTVerifier

        verifier = JWTVerifier(
            audience=audiences or None,
            jwks_uri=jwks if keys is None else None,
            keys=keys,
            algorithms=ASYMMETRIC if algorithms is None else re.findall(r"[^\s,]+", algorithms),
            require_typ=require_typ,
            trusted_http_hosts=trust_http,
        )
        protected = Protected(
            resource=resource,
            authorization_servers=issuers,
            verifier=verifier,
            scopes=frozenset(scopes),
            trusted_http_hosts=trust_http,
        )
    if trust_http:
        say(f"--trust-http: tokens and keys are sent in plain text to and from {', '.join(trust_http)}")
    return protected


def _key_set(path: Path) -> Any:
    """Return the key set in the JSON file ``path``. Raises `CommandError` if the file can't be read or isn't JSON."""
    import msgspec

    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise CommandError(f"--jwks: {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CommandError(f"--jwks: {path} is not JSON") from None
