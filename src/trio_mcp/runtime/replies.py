"""Reply lines: a result or an error in the words of the request's revision, and always something that can be
sent."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from ..jsonrpc.codec import frame_error, frame_result
from ..jsonrpc.errors import INTERNAL_ERROR, CodedError, NotSerializable
from ..jsonrpc.messages import ErrorResponse
from ..spec.converters import NotExpressible, unstructure
from ..spec.input_required import InputRequiredResult
from ..spec.meta import SERVER_INFO, check_meta_keys
from .together import only_member

if TYPE_CHECKING:
    from ..spec.revisions import Revision
    from ..state.requests import InboundRequest

__all__ = ["Replies", "error_line"]

logger = logging.getLogger("trio_mcp")


class Replies:
    """Writes the replies of one side. ``server_info``: what results carry in ``_meta``, per revision that wants it."""

    def __init__(self, server_info: dict[Revision, Any]) -> None:
        self._server_info = server_info

    def result(self, request: InboundRequest, result: Any) -> bytes:
        """The line of ``result``, or of the error that it cannot be said or sent (DESIGN ruling 15)."""
        revision = request.revision
        try:
            data: Any = unstructure(result, revision)
            if meta := data.get("_meta"):
                _look_at_keys(request, meta)
            if revision.result_type:
                data = {"resultType": "input_required" if type(result) is InputRequiredResult else "complete", **data}
                if (info := self._server_info.get(revision)) is not None:
                    data["_meta"] = {**(data.get("_meta") or {}), SERVER_INFO: info}
            return frame_result(request.id, data) + b"\n"
        except NotExpressible as error:
            return self._unsendable(request, str(error), f"Internal error: {error}")
        except (NotSerializable, RecursionError) as error:
            return self._unsendable(request, str(error), "Internal error: the result cannot be sent as JSON")
        except Exception as error:  # an author put something else where a class of the specification belongs
            return self.failure(request, error)

    def _unsendable(self, request: InboundRequest, reason: str, told: str) -> bytes:
        logger.error("%s (request %.100r) gave what cannot be sent: %s", request.method.name, request.id, reason)
        return self.error(request, CodedError(INTERNAL_ERROR, told))

    def error(self, request: InboundRequest, error: CodedError) -> bytes:
        """The line of ``error``, under a code that the revision of ``request`` has."""
        code = request.revision.renamed_errors.get(error.code, error.code)
        # A fresh one: the traceback of what was raised knows the request, and only the garbage collector could
        # part them.
        request.error = CodedError(code, error.message, error.data)
        return error_line(ErrorResponse(request.id, code, error.message, error.data))

    def failure(self, request: InboundRequest, failure: BaseException) -> bytes:
        """The line for an exception of a handler: a `CodedError` says what it is, all else stays inside."""
        single = only_member(failure)
        if isinstance(single, CodedError):
            return self.error(request, single)
        logger.error("%s (request %.100r) failed", request.method.name, request.id, exc_info=failure)
        return self.error(request, CodedError(INTERNAL_ERROR, "Internal error"))


def _look_at_keys(request: InboundRequest, meta: Any) -> None:
    """A key that is none is worth a word and not the result, which may be that of another server, handed on."""
    try:
        check_meta_keys(meta)
    except ValueError as error:
        logger.warning("the result of %s (request %.100r): %s", request.method.name, request.id, error)


def error_line(reply: ErrorResponse) -> bytes:
    """The line of an error; one whose data or message cannot be sent says so instead."""
    try:
        return frame_error(reply.id, reply.code, reply.message, reply.data) + b"\n"
    except NotSerializable:
        return frame_error(reply.id, reply.code, "Internal error: the error cannot be sent as JSON") + b"\n"
