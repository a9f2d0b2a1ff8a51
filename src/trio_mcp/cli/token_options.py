"""Command-line options for the access tokens of clients, for commands that serve over HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from .group import in_section, repeatable
from .printable import CommandError, say

if TYPE_CHECKING:
    from ..auth.resource_server.protected import Protected

_OPTIONS: Final = ("issuers", "resource", "audiences", "jwks", "scopes", "algorithms", "require_typ", "trust_http")


@in_section("Token options")
def token_options(command: Callable[..., int]) -> Callable[..., int]:
    """Add --issuer and the options that need it to a command.

    The command's function gets the argument ``auth``: a `Protected`, or `None` without --issuer.
    """

    @repeatable(
        "--issuer", "issuers", "URL", "Require in each HTTP request a JWT token signed by this authorization server."
    )
    @click.option("--resource", metavar="URL", help="URL of the server, as clients write it. Required with --issuer.")
    @repeatable("--audience", "audiences", "NAME", "Audience that tokens must have. Default: the URL of --resource.")
    @click.option(
        "--jwks",
        metavar="URL|FILE",
        help="JWK set with the keys of the issuer: a URL or a file. Default: the URL in the issuer's metadata.",
    )
    @repeatable("--scope", "scopes", "SCOPE", "Scope that each token must have.")
    @click.option(
        "--algorithms",
        metavar="NAMES",
        help="Accepted signature algorithms, such as RS256,ES256. Default: all secure ones.",
    )
    @click.option(
        "--require-typ/--no-require-typ",
        default=True,
        help="Accept only tokens of type at+jwt, or also those of type JWT or without a type. In the latter case, only "
        "--audience distinguishes them from ID tokens.",
    )
    @repeatable(
        "--trust-http",
        "trust_http",
        "HOST",
        "A host of a private network for which --issuer, --resource and --jwks may be http:// URLs. Tokens are then "
        "sent in plain text.",
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
    except (ImportError, ValueError) as error:  # ImportError: the extra that checks tokens isn't installed
        raise CommandError(str(error)) from None
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
