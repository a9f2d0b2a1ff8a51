"""Gate: what an endpoint asks about the caller of each request."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

from ...runtime.principal import Auth
from .refusal import Refusal

__all__ = ["Gate", "RequestHead"]


class RequestHead(Protocol):
    """The head of an HTTP request."""

    @property
    def method(self) -> str:
        """The method, in upper case."""
        ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Values by names in lower case; the values of a repeated header are joined with commas."""
        ...

    @property
    def repeated(self) -> Collection[str]:
        """Names of headers that came more than once."""
        ...


class Gate(Protocol):
    """Knows the callers of one endpoint. Made by `Protected.gate`, one for each running endpoint."""

    @property
    def metadata(self) -> bytes:
        """The protected resource metadata (RFC 9728 section 2), as JSON."""
        ...

    @property
    def metadata_paths(self) -> frozenset[str]:
        """Paths at which the metadata stand: with the path of the resource, and at the root (RFC 9728 section 3.1)."""
        ...

    def known(self, head: RequestHead) -> Auth | Refusal | None:
        """Return the caller, or the refusal, where that takes no waiting; `None` where it does. Synchronous."""
        ...

    async def ask(self, head: RequestHead) -> Auth | Refusal:
        """Return the caller, or the refusal, of any request. Never raises but for a cancel: a defect of the author's
        functions is logged, and refuses the request with status 500."""
        ...

    def missing(self, auth: Auth, needed: Collection[str]) -> Refusal | None:
        """Return the refusal where the caller lacks one of the ``needed`` scopes; it names all of them (2026-07-28
        authorization, Runtime Insufficient Scope Errors). Synchronous."""
        ...
