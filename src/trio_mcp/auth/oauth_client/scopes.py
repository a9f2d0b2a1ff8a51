"""Scopes: which permissions a request for tokens asks for (2026-07-28 authorization, Scope Selection Strategy)."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from ..errors import AuthorizationError
from ..storage.stored import IssuerRecord
from .discovery import AuthorizationServer
from .grant import Situation

OFFLINE_ACCESS: Final = "offline_access"
"""The scope by which some authorization servers are asked for a refresh token (OpenID Connect Core section 11)."""

_SCOPE: Final = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")
"""RFC 6749 section 3.3."""
_LONGEST: Final = 4096
"""Characters of all scopes together: a request has all in its URL."""


def scopes_in(text: str) -> tuple[str, ...]:
    """Return the scopes in a parameter ``scope``, each once, in their order; a word that cannot be one is left out."""
    return _each_once(text.split())


def scopes_at(found: AuthorizationServer, configured: tuple[str, ...] | None, situation: Situation) -> tuple[str, ...]:
    """Return the scopes to ask for at the authorization server that was ``found``; none at all means that the request
    has no parameter ``scope``.

    The scopes that were requested there before are among the result, lest a step-up lose one; so are the ``configured``
    ones, in place of the suggestions of the server: the challenge, else the ``scopes_supported`` of the resource. A
    challenge for ``insufficient_scope`` is added to either, since nothing less helps (Step-Up Authorization Flow).
    Raises `AuthorizationError` where that is more than a request can have.
    """
    challenge = situation.challenge
    challenged = () if challenge is None else scopes_in(challenge.params.get("scope", ""))
    steps_up = challenge is not None and challenge.params.get("error") == "insufficient_scope"
    if configured is not None:
        wanted = (*configured, *challenged) if steps_up else configured
    else:
        wanted = challenged or found.resource_scopes or ()
    requested = situation.stored.issuers.get(found.issuer, IssuerRecord()).requested_scopes
    scopes = _each_once((*requested, *wanted))
    if len(" ".join(scopes)) > _LONGEST:
        raise AuthorizationError(f"the server asks for scopes of more than {_LONGEST} characters")
    return scopes


def scopes_to_register(found: AuthorizationServer, asked: tuple[str, ...]) -> tuple[str, ...]:
    """Return the scopes for which a client registers: the ones that the client is about to ask for, and the others of
    the resource, for a later step-up. None at all where the authorization server that was ``found`` does not list all
    that is asked for, since many refuse to register such a client."""
    listed = found.metadata.scopes_supported
    if not asked or not (listed is None or set(asked) <= set(listed)):
        return ()
    others = (scope for scope in found.resource_scopes or () if listed is None or scope in listed)
    scopes = _each_once((*asked, *others))
    return scopes if len(" ".join(scopes)) <= _LONGEST else asked


def scope_parameter(scopes: tuple[str, ...]) -> dict[str, str]:
    """Return the parameter for ``scopes``; none for none."""
    return {"scope": " ".join(scopes)} if scopes else {}


def _each_once(words: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word for word in words if _SCOPE.fullmatch(word)))
