"""`Replies` encodes each reply, a result or an error, in the format of the request's protocol revision. If a result
can't be encoded, an error reply is encoded instead."""

from __future__ import annotations

import logging
import traceback
from typing import TYPE_CHECKING, Any, Final, cast

import trio

from ..concurrency.nurseries import failures_in, sole_exception
from ..jsonrpc.codec import frame_error, frame_result
from ..jsonrpc.errors import INTERNAL_ERROR, CodedError, NotSerializable, UnsendableResult
from ..jsonrpc.messages import ErrorResponse
from ..protocol.converters import NotExpressible, unstructure
from ..protocol.errors import CapabilityMissing, MethodUnavailable
from ..protocol.meta import SERVER_INFO, check_meta_keys
from ..protocol.types.content import TextContent
from ..protocol.types.input_required import InputRequiredResult
from ..protocol.types.tools import CallToolResult, CreatedTask, ToolError

if TYPE_CHECKING:
    from ..protocol.revisions import Revision
    from ..state.requests import InboundRequest
    from .peer import Peer
    from .requests.scope import RequestScope

logger = logging.getLogger("trio_mcp")

_RESULT_TYPES: Final[dict[Any, str]] = {InputRequiredResult: "input_required", CreatedTask: "task"}
"""Values of ``resultType`` for results that don't complete the request."""
_LONGEST_NAME: Final = 200
"""Maximum number of characters of a name that are logged."""
_LONGEST_TOLD: Final = 4000
"""Maximum number of characters of an exception's text that are sent to the client, if exceptions are exposed."""


class Replies:
    """Encodes the replies of a server or client to incoming requests.

    ``server_info``: the server's description that results carry in ``_meta``, for each revision that needs one.
    ``expose_errors``: whether replies contain the text of unexpected exceptions.
    """

    def __init__(self, server_info: dict[Revision, Any], *, expose_errors: bool = False) -> None:
        self._server_info = server_info
        self._expose_errors = expose_errors

    def result(self, request: InboundRequest, result: Any, scope: RequestScope | None = None) -> bytes:
        """Encode ``result`` as the reply to ``request``, or encode an error if this fails. The reply is one JSON line.

        If the result can't be encoded or sent, return the line of an error reply instead. See `failure` for ``scope``.
        """
        try:
            return self.line(request, result)
        except NotExpressible as error:
            return self._unsendable(request, error, str(error))
        except (NotSerializable, RecursionError) as error:
            return self._unsendable(request, error, "the result cannot be sent as JSON")
        except Exception as error:  # the handler's result contains an object of the wrong class
            return self.failure(request, error, scope)

    def line(self, request: InboundRequest, result: Any) -> bytes:
        """Encode ``result`` as the reply to ``request``, in one JSON line. Raise an exception if this fails.

        Raises `NotExpressible`, `NotSerializable`, and any exception caused by a value that isn't of the
        specification's class.
        """
        revision = request.revision
        data: Any = unstructure(result, revision)
        if meta := data.get("_meta"):
            log_invalid_keys(request, meta)
        if revision.result_type:
            data = {"resultType": _RESULT_TYPES.get(type(result), "complete"), **data}
            if (info := self._server_info.get(revision)) is not None:
                data["_meta"] = {**(data.get("_meta") or {}), SERVER_INFO: info}
        return frame_result(request.id, data, newline=True)

    def _unsendable(self, request: InboundRequest, error: Exception, reason: str) -> bytes:
        logger.error(
            "%s (request %.100r) returned something that cannot be sent: %s", request.method.name, request.id, error
        )
        return self._internal(request, error, reason)

    def error(self, request: InboundRequest, error: CodedError) -> bytes:
        """Encode ``error`` as the error reply to ``request``.

        Its error code is replaced if the protocol revision of ``request`` uses another code.
        """
        code = request.revision.renamed_errors.get(error.code, error.code)
        # Store a copy of the error, because the traceback of the raised error refers to the request.
        # A reference to the raised error would make a cycle, which only the garbage collector frees.
        request.error = CodedError(code, error.message, error.data)
        return error_line(ErrorResponse(request.id, code, error.message, error.data))

    def failure(
        self,
        request: InboundRequest,
        failure: BaseException,
        scope: RequestScope | None = None,
        peer: Peer | None = None,
    ) -> bytes:
        """Encode the reply to a request whose handler raised the exception ``failure``.

        A `CodedError` or `ToolError` is sent to the peer. Any other exception is logged instead, with the caller: if
        there is a ``scope``, also with what was called and for how long, and otherwise with the ``peer``. The failure
        of a tool is a result (2025-11-25 tools, Error Handling).
        """
        single = sole_exception(failure)
        if not isinstance(single, CapabilityMissing) and (missing := _missing_in(failure)):
            # MCP 2026-07-28 (basic page) requires that an error for missing capabilities names all of them.
            # The handler may have made several input requests, which failed for different missing capabilities.
            single = CapabilityMissing(sorted(missing), request.revision)
        if isinstance(single, MethodUnavailable):
            # The handler itself has tried to send a message whose method isn't available.
            # Don't send this error: the client would believe that the method of its own request isn't available.
            return self.error(request, CodedError(INTERNAL_ERROR, f"Internal error: {single.message}"))
        if isinstance(single, CodedError):
            return self.error(request, single)
        if isinstance(single, UnsendableResult):
            return self._unsendable(request, single, "the result cannot be sent as JSON")
        if isinstance(single, ToolError) and request.method.tells_failures:
            return self._failed(request, str(single))
        _log(request, failure, scope, peer)
        return self._internal(request, failure)

    def _internal(self, request: InboundRequest, failure: BaseException, reason: str | None = None) -> bytes:
        """Encode the error reply for an unexpected ``failure`` as a JSON line.

        ``reason`` is the part of the failure's text that the peer may see.
        """
        if request.method.tells_failures:
            request.unpack()
            told = f"internal error in tool {str(request.params.get('name'))[:200]}"
        else:
            told = "Internal error"
        if self._expose_errors:
            reason = _error_text(failure)
        if reason is not None:
            told += f": {reason}"
        if request.method.tells_failures:
            return self._failed(request, told)
        return self.error(request, CodedError(INTERNAL_ERROR, told))

    def _failed(self, request: InboundRequest, told: str) -> bytes:
        request.failed = True
        return self.result(request, CallToolResult([TextContent(told)], is_error=True))


def _log(request: InboundRequest, failure: BaseException, scope: RequestScope | None, peer: Peer | None) -> None:
    """Log the exception ``failure`` of a handler, with its traceback.

    Values in the log message are also attributes of the log record.
    """
    from ..mistakes import explain

    # Import `param_headers` here, because servers over stdio need it only for this log message.
    from ..protocol.param_headers import NAMED_BY

    explain(failure)
    request.unpack()
    called = request.params.get(NAMED_BY.get(request.method.name, ""))
    target = called[:_LONGEST_NAME] if isinstance(called, str) else None
    peer = peer if scope is None else scope.exchange.peer
    caller = None if peer is None or peer.name is None else peer.name[:_LONGEST_NAME]
    duration = None if scope is None else trio.current_time() - scope.begun
    words = "" if target is None else f" in {target!r}"
    words += "" if caller is None else f" for {caller!r}"
    words += "" if duration is None else f" after {duration:.3f} s"
    tool = target if request.method.tells_failures else None
    extra = {"method": request.method.name, "tool": tool, "caller": caller, "duration": duration}
    logger.error("%s (request %.100r) failed%s", request.method.name, request.id, words, exc_info=failure, extra=extra)


def log_invalid_keys(request: InboundRequest, meta: Any) -> None:
    """If ``meta``, the ``_meta`` of a result, has an illegal key, log a warning.

    This doesn't raise, because the result may come from another server through a proxy.
    """
    try:
        check_meta_keys(meta)
    except ValueError as error:
        logger.warning("the result of %s (request %.100r): %s", request.method.name, request.id, error)


def _missing_in(failure: BaseException) -> set[str]:
    """Return the missing capabilities that the exception ``failure`` names.

    The exception must be a `CapabilityMissing`, or a group of such errors only. Return an empty set for any other
    exception.
    """
    if isinstance(failure, CapabilityMissing):
        return set(failure.missing)
    if isinstance(failure, BaseExceptionGroup):
        found = [_missing_in(each) for each in cast("BaseExceptionGroup[BaseException]", failure).exceptions]
        return set[str]().union(*found) if all(found) else set()
    return set()


def _error_text(failure: BaseException) -> str:
    """Return the type and message of an exception as text for the peer.

    For a group, the text contains each exception.
    """
    members = (
        failures_in(cast("BaseExceptionGroup[BaseException]", failure))
        if isinstance(failure, BaseExceptionGroup)
        else [failure]
    )
    words = "; ".join("".join(traceback.format_exception_only(member)).strip() for member in members)
    return words[:_LONGEST_TOLD].encode(errors="backslashreplace").decode()


def error_line(reply: ErrorResponse) -> bytes:
    """Encode an error reply as a JSON line.

    If the error's data or message can't be encoded, return an internal error that says so.
    """
    try:
        return frame_error(reply.id, reply.code, reply.message, reply.data) + b"\n"
    except NotSerializable:
        return frame_error(reply.id, reply.code, "Internal error: the error cannot be sent as JSON") + b"\n"
