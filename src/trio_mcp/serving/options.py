"""ServingOptions: the keyword arguments of the functions that serve many clients, documented once."""

from __future__ import annotations

from typing import TypedDict

from ..runtime.limits import Limits


class ServingOptions(TypedDict, total=False):
    """The keyword arguments that `serve_websocket`, `serve_tcp` and `serve_unix` take."""

    limits: Limits | None
    """Limits that replace the server's own; `None` keeps the server's."""
    stateless: bool
    """True keeps nothing between requests, see `Server.running`; False, the default, allows it."""
    handle_signals: bool
    """True, the default, lets SIGTERM and SIGINT end the server as `serve_websocket` says, in the main thread only."""
