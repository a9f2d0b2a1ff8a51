"""The bounds of ``resources/subscribe``, the same wherever it is served."""

from __future__ import annotations

from ..jsonrpc.errors import TOO_BUSY, CodedError
from ..protocol.conversion.converters import structure_params
from ..protocol.types.resources import SubscribeParams
from ..state.requests import InboundRequest
from .offers.uri_templates import check_length

__all__ = ["too_many_subscriptions", "uri_to_subscribe"]


def uri_to_subscribe(request: InboundRequest) -> str:
    """Return the URI that is asked for. Raises `CodedError` (-32602) for none, and for one that is too long."""
    uri = structure_params(request.params, SubscribeParams, request.revision).uri
    check_length(uri)
    return uri


def too_many_subscriptions() -> CodedError:
    """Return the error for one subscription more than `Limits.max_subscriptions`."""
    return CodedError(TOO_BUSY, "Too busy: too many subscriptions on this connection")
