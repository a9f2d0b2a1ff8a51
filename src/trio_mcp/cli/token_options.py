"""Options of the commands that serve over HTTP about the access tokens of their clients, and what they mean."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .group import repeatable
from .printable import CommandError, say

if TYPE_CHECKING:
    from ..auth.resource_server.protected import Protected

_OPTIONS: Final = ("issuers", "resource", "audiences", "jwks", "scopes", "algorithms", "require_typ", "trust_http")


def token_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add --issuer and the options that go with it. The function gets the argument ``auth``: a `Protected`, or `None`
    without --issuer."""

    @repeatable(
        "--issuer", "issuers", "URL", "An authorization server whose signed tokens (JWT) each HTTP request needs."
    )
    @click.option(
        "--resource", metavar="URL", help="The URL of the server, as its clients write it. Goes with --issuer."
    )
    @repeatable("--audience", "audiences", "NAME", "A name of the server in tokens. Default: the URL of --resource.")
    @click.option(
        "--jwks",
        metavar="URL|FILE",
        help="The keys of the issuer: a URL, or a file with the JWK set. Default: those that its metadata name.",
    )
    @repeatable("--scope", "scopes", "SCOPE", "A scope that each token needs.")
    @click.option(
        "--algorithms",
        metavar="NAMES",
        help="Accepted algorithms of signatures, as RS256,ES256. Default: all safe ones.",
    )
    @click.option(
        "--require-typ/--no-require-typ",
        default=True,
        help="Accept only tokens of the type at+jwt, or also those of issuers that write JWT or no type. ID tokens are "
        "told apart by --audience alone then.",
    )
    @repeatable(
        "--trust-http",
        "trust_http",
        "HOST",
        "A host of a private network that --issuer, --resource and --jwks may name with http://. Whoever reads the "
        "traffic there sees the tokens.",
    )
    @wraps(command)
    def run(**named: Any) -> int:
        return command(auth=_protected(**{name: named.pop(name) for name in _OPTIONS}), **named)

    return run


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
    """Return the authorization that the options describe; `None` without one. Raises `click.UsageError` for options
    that do not go together, and `CommandError` for values that make no sense."""
    if not issuers:
        if any((resource, audiences, jwks, scopes, algorithms, not require_typ, trust_http)):
            raise click.UsageError(
                "--resource, --audience, --jwks, --scope and other options for tokens go with --issuer"
            )
        return None
    if resource is None:
        raise click.UsageError("--issuer needs --resource: the URL of the server, as its clients write it")
    keys = None if jwks is None or "://" in jwks else _key_set(Path(jwks))
    try:
        from ..auth.resource_server.jwt import JWTVerifier
        from ..auth.resource_server.keys import ASYMMETRIC
        from ..auth.resource_server.protected import Protected

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
    except (ImportError, ValueError) as error:  # the first where the extra that checks tokens is not installed
        raise CommandError(str(error)) from None
    if trust_http:
        say(f"--trust-http: tokens and keys travel in plain text to and from {', '.join(trust_http)}")
    return protected


def _key_set(path: Path) -> Any:
    """Return the JSON in the file ``path``. Raises `CommandError`."""
    import msgspec

    try:
        return msgspec.json.decode(path.read_bytes())
    except OSError as error:
        raise CommandError(f"--jwks: {path} cannot be read: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise CommandError(f"--jwks: {path} is not JSON") from None
