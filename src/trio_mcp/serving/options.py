"""The keywords of all that serves many clients, each said once."""

from __future__ import annotations

from typing import TypedDict

from ..runtime.limits import Limits

__all__ = ["ServingOptions"]


class ServingOptions(TypedDict, total=False):
    """The keyword arguments that `serve_websocket`, `serve_tcp` and `serve_unix` take."""

    limits: Limits | None
    """Replace the server's own; `None` is those."""
    stateless: bool
    """Nothing is kept between requests, see `Server.running`; by default it may be."""
    handle_signals: bool
    """SIGTERM and SIGINT end it as `serve_websocket` says, in the main thread only; so it is by default."""
