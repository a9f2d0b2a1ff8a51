"""The bounds of ``resources/subscribe``, the same wherever it is served."""

from __future__ import annotations

from typing import Final

from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..spec.converters import structure_params
from ..spec.errors import TOO_BUSY
from ..spec.resources import SubscribeParams
from ..state.requests import InboundRequest

__all__ = ["LONGEST_URI", "too_many_subscriptions", "uri_to_subscribe"]

LONGEST_URI: Final = 8192
"""Characters. A URI is kept as long as the connection, so it cannot be of any length."""


def uri_to_subscribe(request: InboundRequest) -> str:
    """The resource that is asked for. Raises `CodedError` (-32602) for none, and for a URI that is too long."""
    uri = structure_params(request.params, SubscribeParams).uri
    if len(uri) > LONGEST_URI:
        raise CodedError(INVALID_PARAMS, f"Invalid params: a URI to subscribe to has at most {LONGEST_URI} characters")
    return uri


def too_many_subscriptions() -> CodedError:
    """The error of one more than `Limits.max_subscriptions`."""
    return CodedError(TOO_BUSY, "Too busy: too many subscriptions on this connection")
