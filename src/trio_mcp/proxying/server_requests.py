"""Requests of the server behind a proxy are handed on to the right client, and the answers back.

`translated` and its like turn messages of one revision into those of another, without loss of members that neither
revision knows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Any, Final, Protocol, cast

import trio

from ..jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, CodedError, PeerError, ProtocolViolation
from ..protocol.converters import NotExpressible, structure, unstructure
from ..protocol.errors import CapabilityMissing, MethodUnavailable
from ..protocol.fields import JSONObject
from ..protocol.meta import PROGRESS_TOKEN, RELATED_TASK, SERVER_INFO
from ..protocol.methods import METHODS
from ..protocol.revisions import Revision, declares, requests_of
from ..protocol.types.input_required import ASKABLE, InputRequest, capability_for
from ..protocol.types.lifecycle import ClientCapabilities
from ..runtime.calls import OnProgress
from ..runtime.requests.scope import RequestScope, current_request
from ..runtime.transport import ConnectionLost
from .downstream import Downstream, ForwardedCall
from .tasks import KnownTasks


def translated(data: Any, kind: Any, said: Revision, wanted: Revision) -> Any:
    """Return ``data``, a ``kind`` in the terms of revision ``said``, translated to the terms of revision ``wanted``.

    For equal revisions ``data`` is returned unchanged and unchecked. Otherwise members that ``kind`` does not have are
    kept unchanged, and members that ``wanted`` does not have are left out. Raises `ValueError` for data that is no
    ``kind``, and `NotExpressible` for data that ``wanted`` cannot express.
    """
    if said is wanted:
        return data
    meant = structure(data, kind)
    return _merged(data, unstructure(meant, said), unstructure(meant, wanted))


def translated_result(data: JSONObject, kind: Any, said: Revision, wanted: Revision) -> JSONObject:
    """Return a result as `translated` does, without the members that all results have in ``said`` but not in
    ``wanted``."""
    result = cast("JSONObject", translated(data, kind, said, wanted))
    if said.result_type and not wanted.result_type:
        result = {name: value for name, value in result.items() if name != "resultType"}
    meta = result.get("_meta")
    if isinstance(meta, dict) and not wanted.server_info_in_meta:
        kept = {name: value for name, value in cast("JSONObject", meta).items() if name != SERVER_INFO}
        result = {**result, "_meta": kept}
        if not kept:
            del result["_meta"]
    return result


def _merged(data: Any, known: Any, wanted: Any) -> Any:
    """Return ``wanted`` with the parts of ``data`` that are not in ``known``, which holds the understood part of
    ``data``."""
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


_NOBODY: Final = "Internal error: no client is there that could be asked"
_WHOSE: Final = "Internal error: several clients share this server, and nothing shows which of them is asked"


class _Respondent(Protocol):
    """A client that can be asked, inside or outside of a call."""

    @property
    def revision(self) -> Revision: ...

    @property
    def capabilities(self) -> ClientCapabilities: ...

    def ask(
        self, method: str, params: JSONObject, on_progress: OnProgress | None, key: str | None
    ) -> Awaitable[Any]: ...


async def ask_downstream(
    downstreams: Iterable[Downstream],
    tasks: KnownTasks,
    method: str,
    params: JSONObject,
    revision: Revision,
    key: str | None,
    *,
    call: ForwardedCall | None,
    guesses: bool,
) -> JSONObject:
    """Return the answer of the client that is asked; request and answer are in the terms of ``revision``.

    A request of a modern server belongs to the call in which the request is made. A legacy server does not name the
    client: its request goes to the call, or the client, whose task the request names, else to ``call``, in whose answer
    the request came. Otherwise, if the proxy ``guesses``, the request goes to the only client there is, else to the
    only client with a call in flight; and with the latest of that client's calls that can carry a request.
    ``key`` is the name that a modern server gave the question, which a modern client sees, too. Raises `CodedError` for
    an error reply.
    """
    scope = current_request.get(None)
    if revision.server_requests:
        asked, own = _named(tasks, method, params, downstreams, call, guesses=guesses), scope
    else:
        asked, own = _calling(downstreams, scope), None
    _check_declared(asked, method, params)
    downstream = asked.downstream if isinstance(asked, ForwardedCall) else asked
    if method == "elicitation/create":
        downstream.urls.asked(params)
    answer = await _put(asked, method, _as_said_there(asked, method, params, revision), own, key)
    if not isinstance(answer, dict):
        raise CodedError(INTERNAL_ERROR, "Internal error: the client's answer makes no sense")
    tasks.note_created(cast("JSONObject", answer), downstream)
    try:
        return translated(answer, METHODS[method].result, asked.revision, revision)
    except NotExpressible as error:
        raise CodedError(INTERNAL_ERROR, f"Internal error: {error}") from None
    except ValueError:
        raise CodedError(INTERNAL_ERROR, "Internal error: the client's answer makes no sense") from None


def _named(
    tasks: KnownTasks,
    method: str,
    params: JSONObject,
    downstreams: Iterable[Downstream],
    call: ForwardedCall | None,
    *,
    guesses: bool,
) -> Downstream | ForwardedCall:
    """Return the client, or the client's call, that a legacy server asks: see `ask_downstream`."""
    of_task = tasks.call_of(params)
    if of_task is not None:
        return of_task
    if tasks.names_client(method, params):
        return _only(tasks.concerned(method, params, downstreams))
    if call is not None:
        if call.is_cancelled:
            raise CodedError(INTERNAL_ERROR, _NOBODY)
        return call
    if not guesses:
        raise CodedError(INTERNAL_ERROR, _WHOSE)
    return _only(tasks.concerned(method, params, downstreams))


def _only(downstreams: list[Downstream]) -> Downstream | ForwardedCall:
    """Return the client, or the client's call, that is asked where nothing but ``downstreams`` is known."""
    if len(downstreams) > 1:
        downstreams = [each for each in downstreams if each.is_waiting]
        if len(downstreams) > 1:
            raise CodedError(INTERNAL_ERROR, _WHOSE)
    if not downstreams:
        raise CodedError(INTERNAL_ERROR, _NOBODY)
    (downstream,) = downstreams
    if downstream.is_many and sum(not call.is_cancelled for call in downstream.calls.values()) > 1:
        raise CodedError(INTERNAL_ERROR, _WHOSE)
    # Any call can carry the request: the latest call is the likeliest cause.
    for call in reversed(downstream.calls.values()):
        if call.may_ask and not call.is_cancelled:
            return downstream if call.revision.server_requests else call
    if downstream.legacy is None:
        raise CodedError(INTERNAL_ERROR, _NOBODY)
    return downstream


def _calling(downstreams: Iterable[Downstream], scope: RequestScope | None) -> ForwardedCall:
    """Return the call in which a modern server asks. Modern servers ask only in calls, and each call runs for a request
    of ours."""
    for downstream in downstreams:
        if scope is not None and scope in downstream.calls:
            return downstream.calls[scope]
    raise CodedError(INTERNAL_ERROR, _NOBODY)


def _check_declared(asked: _Respondent, method: str, params: JSONObject) -> None:
    """Raise `CapabilityMissing` for a request that the client has not declared (DESIGN ruling 18). A method that is not
    one of the three in `ASKABLE` is passed on unchanged, where the revision has that method."""
    if method not in ASKABLE:
        if method not in requests_of("server", asked.revision):
            raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": method})
        return
    needed = capability_for(InputRequest(method, params))  # pyright: ignore[reportArgumentType] one of them
    missing = [each for each in needed if not declares(asked.capabilities, each, asked.revision)]
    if missing:
        raise CapabilityMissing(missing, asked.revision)


def _as_said_there(asked: _Respondent, method: str, params: JSONObject, revision: Revision) -> JSONObject:
    meta: Any = params.get("_meta")
    if isinstance(meta, dict):
        # Progress tokens differ on each connection; tasks are unknown to a client that has none, or another form.
        left_out = {PROGRESS_TOKEN} if asked.revision.tasks == revision.tasks else {PROGRESS_TOKEN, RELATED_TASK}
        kept = {name: value for name, value in cast("JSONObject", meta).items() if name not in left_out}
        params = {**params, "_meta": kept}
    try:
        return translated(params, METHODS[method].params, revision, asked.revision)
    except ValueError as error:  # NotExpressible is a ValueError
        raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None


async def _put(asked: _Respondent, method: str, params: JSONObject, own: RequestScope | None, key: str | None) -> Any:
    on_progress: OnProgress | None = None
    if own is not None and own.request.progress_token is not None:

        def report(told: Any) -> None:
            own.progress(told.progress, told.total, told.message)

        on_progress = report
    try:
        return await asked.ask(method, params, on_progress, key)
    except MethodUnavailable:
        raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": method}) from None
    except PeerError as error:
        raise CodedError(error.code, error.message, error.data) from None
    except (ConnectionLost, ProtocolViolation) as error:
        raise CodedError(INTERNAL_ERROR, "Internal error: the client that was asked is gone") from error
    except trio.TooSlowError as error:
        raise CodedError(
            INTERNAL_ERROR, "Internal error: the client that was asked has not answered in time"
        ) from error
