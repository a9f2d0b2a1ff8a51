"""Forwards the upstream server's requests (sampling, elicitation, roots) to the right client, and the client's
responses back.

`translated` and similar functions convert messages between revisions, without losing keys that neither revision knows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeAlias, cast

import trio

from ..concurrency.contexts import contextmanager
from ..jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, CodedError, PeerError, ProtocolViolation
from ..protocol.converters import NotExpressible, repaired_result, structure, unstructure
from ..protocol.errors import CapabilityMissing, MethodUnavailable
from ..protocol.fields import JSONObject
from ..protocol.meta import PROGRESS_TOKEN, RELATED_TASK, SERVER_INFO
from ..protocol.methods import METHODS
from ..protocol.revisions import Revision, declares, requests_of
from ..protocol.types.input_required import ASKABLE, InputRequest, capability_for
from ..runtime.peer import ANY_CLIENT
from ..runtime.requests.scope import RequestScope
from ..runtime.transport import ConnectionLost
from .downstream import Downstream, ForwardedCall
from .tasks import KnownTasks


class Parties:
    """Records which callers have cancelled a call to the upstream server. A late request that the server sends for a
    cancelled call must not reach another client.

    A caller is a principal or, without one, a connection or a legacy session.

    A legacy server doesn't name the call for which it sends a request, and may ignore a cancellation. So even if only
    one caller has a call in flight, a request may belong to a call that another caller has cancelled.
    """

    def __init__(self) -> None:
        self._gave_up: set[object] = set()
        """The first two callers that have cancelled a call. Other callers aren't stored, since only the existence of a
        second caller matters."""

    @contextmanager
    def calling(self, scope: RequestScope) -> Generator[None]:
        """Track a caller's call to the upstream server while the ``with`` block runs.

        If the call is cancelled, record its caller. Any exception except `CodedError` counts as a cancellation: a
        `CodedError` means that the server has responded or is lost.
        """
        try:
            yield
        except CodedError:
            raise
        except BaseException:
            if len(self._gave_up) < 2:
                self._gave_up.add(scope.exchange.party)
            raise

    def abandoned_only_by(self, party: object) -> bool:
        """Return false if a caller other than ``party`` has cancelled a call to the upstream server, otherwise true.

        Without authorization, all clients of a modern HTTP endpoint count as one caller, although they may be different
        users. For such a caller, return true only if no call at all was cancelled.
        """
        return not self._gave_up if party is ANY_CLIENT else self._gave_up <= {party}


Adjust: TypeAlias = Callable[[Any, Any], Any]
"""A function that converts data that can't be read as the given class to data that can."""


def translated(data: Any, kind: Any, source: Revision, target: Revision, adjust: Adjust | None = None) -> Any:
    """Convert ``data``, JSON data of the type ``kind``, from the protocol revision ``source`` to the revision
    ``target``.

    For equal revisions ``data`` is returned unchanged and unchecked. Otherwise keys that ``kind`` doesn't have are
    kept, and keys that ``target`` doesn't have are left out. ``adjust`` repairs results that can't be read; content
    blocks that can't be read are kept unchanged. Raises `ValueError` for data that isn't a ``kind``, the errors of
    ``adjust``, and `NotExpressible` for data that ``target`` can't express.
    """
    if source is target:
        return data
    try:
        meant = structure(data, kind)
    except ValueError:
        if adjust is None:
            raise
        data = adjust(data, kind)
        meant = structure(data, kind)
    return _merged(data, unstructure(meant, source), unstructure(meant, target))


def translated_params(params: JSONObject, kind: Any, source: Revision, target: Revision) -> JSONObject:
    """Return the parameters ``params`` of a request, translated as in `translated`.

    Raises `CodedError` (-32602) if they are invalid, or can't be expressed in ``target``.
    """
    try:
        return translated(params, kind, source, target)
    except ValueError as error:  # NotExpressible is a ValueError
        raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None


def translated_result(
    data: JSONObject, kind: Any, source: Revision, target: Revision, adjust: Adjust | None = None
) -> JSONObject:
    """Convert a result from one protocol revision to another. See `translated`.

    Also drop a ``resultType`` that only one of the revisions has, and a ``_meta`` that isn't an object.
    """
    result = cast("JSONObject", translated(data, kind, source, target, adjust))
    if source.result_type != target.result_type:
        result = {name: value for name, value in result.items() if name != "resultType"}
    if not isinstance(result.get("_meta", {}), dict):
        result = {name: value for name, value in result.items() if name != "_meta"}
    return result if target.server_info_in_meta else without_meta(result, SERVER_INFO)


def without_meta(members: JSONObject, key: str) -> JSONObject:
    """Return the JSON object ``members`` without ``key`` in its ``_meta``. If ``_meta`` becomes empty, remove
    ``_meta``."""
    meta = members.get("_meta")
    if not isinstance(meta, dict) or key not in meta:
        return members
    kept = {name: value for name, value in cast("JSONObject", meta).items() if name != key}
    members = {**members, "_meta": kept}
    if not kept:
        del members["_meta"]
    return members


def _merged(data: Any, known: Any, wanted: Any) -> Any:
    """Return ``wanted``, the converted data, with those parts of the original ``data`` added that weren't understood.

    ``known`` is the part of ``data`` that was understood, and was converted to ``wanted``.
    """
    if isinstance(data, dict) and isinstance(known, dict) and isinstance(wanted, dict):
        came, understood = cast("JSONObject", data), cast("JSONObject", known)
        merged: JSONObject = {
            name: _merged(came[name], understood[name], value) if name in came and name in understood else value
            for name, value in cast("JSONObject", wanted).items()
        }
        return merged | {name: value for name, value in came.items() if name not in understood}
    if isinstance(data, list) and isinstance(known, list) and isinstance(wanted, list):
        items, ours, theirs = cast("list[Any]", data), cast("list[Any]", known), cast("list[Any]", wanted)
        if len(items) == len(ours) == len(theirs):
            return [_merged(*each) for each in zip(items, ours, theirs, strict=True)]
    return cast("Any", wanted)


Respondent: TypeAlias = Downstream | ForwardedCall
"""A client to which a request (sampling, elicitation, roots) can be sent, in a call or outside of calls."""


async def ask(
    respondent: Respondent,
    method: str,
    params: JSONObject,
    revision: Revision,
    scope: RequestScope | None,
    key: str | None,
    tasks: KnownTasks,
) -> JSONObject:
    """Send a request of the upstream server (sampling, elicitation, roots) to the client ``respondent``, and return the
    client's response.

    The request and the response are in the form of the protocol revision ``revision``. Raises `CodedError` if the
    client responds with an error, or doesn't respond.

    Args:
        scope: The call within which a modern server sent the request. The client's progress is reported to it.
        key: The key of a modern server's input request. A modern client gets the same key.
        tasks: Records the client's task, if the client responds with one.
    """
    _check_declared(respondent, method, params)
    downstream = respondent.downstream if isinstance(respondent, ForwardedCall) else respondent
    if method == "elicitation/create":
        downstream.urls.add_question(params)
    said_there = _in_client_terms(respondent, method, params, revision)
    on_progress = None
    if scope is not None and scope.request.progress_token is not None:

        def report(told: Any) -> None:
            scope.progress(told.progress, told.total, told.message)

        on_progress = report
    try:
        answer = await respondent.ask(method, said_there, on_progress, key)
    except MethodUnavailable:
        raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": method}) from None
    except PeerError as error:
        raise CodedError(error.code, error.message, error.data) from None
    except (ConnectionLost, ProtocolViolation) as error:
        raise CodedError(INTERNAL_ERROR, "Internal error: the client disconnected before it responded") from error
    except trio.TooSlowError as error:
        words = "Internal error: the client did not respond in time"
        raise CodedError(INTERNAL_ERROR, words) from error
    if isinstance(answer, dict):
        tasks.record_created(cast("JSONObject", answer), downstream)
        try:
            if method not in METHODS:
                return cast("JSONObject", answer)
            return translated(
                answer, METHODS[method].result, respondent.revision, revision, partial(repaired_result, method)
            )
        except NotExpressible as error:
            raise CodedError(INTERNAL_ERROR, f"Internal error: {error}") from None
        except (ValueError, ProtocolViolation):
            pass
    raise CodedError(INTERNAL_ERROR, "Internal error: the client's response is invalid")


def _check_declared(respondent: Respondent, method: str, params: JSONObject) -> None:
    """Raise `CapabilityMissing` if the client hasn't declared the capability that a server-to-client request needs
    (docs/rulings.md, ruling 18).

    Methods outside `ASKABLE` need no capability, but must exist in the client's revision or in an extension.
    """
    if method not in ASKABLE:
        if method in METHODS and method not in requests_of("server", respondent.revision):
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": method})
        return
    needed = capability_for(InputRequest(method, params))  # pyright: ignore[reportArgumentType] one of them
    missing = [each for each in needed if not declares(respondent.capabilities, each, respondent.revision)]
    if missing:
        raise CapabilityMissing(missing, respondent.revision)


def _in_client_terms(respondent: Respondent, method: str, params: JSONObject, revision: Revision) -> JSONObject:
    meta: Any = params.get("_meta")
    if isinstance(meta, dict):
        # Remove the progress token, because each connection has its own progress tokens.
        # Also remove task data if the two protocol revisions have different forms of tasks.
        left_out = {PROGRESS_TOKEN} if respondent.revision.tasks == revision.tasks else {PROGRESS_TOKEN, RELATED_TASK}
        kept = {name: value for name, value in cast("JSONObject", meta).items() if name not in left_out}
        params = {**params, "_meta": kept}
    if method not in METHODS:
        return params
    return translated_params(params, METHODS[method].params, revision, respondent.revision)
