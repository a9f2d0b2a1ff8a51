"""Requests of the server behind a proxy are handed on to the right client, and the answers back.

`translated` and its like turn messages of one revision into those of another, without loss of members that neither
revision knows.
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
    """The parties that have given up a call of one server. Without principals, each connection and each legacy session
    is a party.

    A legacy server doesn't say for which call it asks, and may ignore a cancel. So a question that comes while a single
    party has a call in progress may still belong to a call that another party has given up.
    """

    def __init__(self) -> None:
        self._gave_up: set[object] = set()
        """At most two parties, since any second one is enough."""

    @contextmanager
    def calling(self, scope: RequestScope) -> Generator[None]:
        """Forward the call of ``scope`` in the block, which raises `CodedError` if the server has answered or is lost,
        and any other exception if the call is given up."""
        try:
            yield
        except CodedError:
            raise
        except BaseException:
            if len(self._gave_up) < 2:
                self._gave_up.add(scope.exchange.party)
            raise

    def abandoned_only_by(self, party: object) -> bool:
        """Return whether no party other than ``party`` has given up a call. All clients of an endpoint over modern HTTP
        without authorization are one party, but may be different users: for them, no call may have been given up."""
        return not self._gave_up if party is ANY_CLIENT else self._gave_up <= {party}


Adjust: TypeAlias = Callable[[Any, Any], Any]
"""Returns data that can be read as the given class, of data that can't."""


def translated(data: Any, kind: Any, source: Revision, target: Revision, adjust: Adjust | None = None) -> Any:
    """Return ``data``, a ``kind`` in the terms of revision ``source``, translated to the terms of revision ``target``.

    For equal revisions ``data`` is returned unchanged and unchecked. Otherwise members that ``kind`` does not have are
    kept unchanged, and members that ``target`` does not have are left out. ``adjust`` makes results readable that
    aren't; content blocks that can't be read are passed on unchanged. Raises `ValueError` for data that is no ``kind``,
    or as ``adjust``, and `NotExpressible` for data that ``target`` cannot express.
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


def translated_result(
    data: JSONObject, kind: Any, source: Revision, target: Revision, adjust: Adjust | None = None
) -> JSONObject:
    """Return a result as `translated` does, without a ``resultType`` that only one of the revisions has, and without a
    ``_meta`` that isn't an object."""
    result = cast("JSONObject", translated(data, kind, source, target, adjust))
    if source.result_type != target.result_type:
        result = {name: value for name, value in result.items() if name != "resultType"}
    if not isinstance(result.get("_meta", {}), dict):
        result = {name: value for name, value in result.items() if name != "_meta"}
    return result if target.server_info_in_meta else without_meta(result, SERVER_INFO)


def without_meta(members: JSONObject, key: str) -> JSONObject:
    """Return a result without ``key`` in its ``_meta``, and without a ``_meta`` that had nothing else."""
    meta = members.get("_meta")
    if not isinstance(meta, dict) or key not in meta:
        return members
    kept = {name: value for name, value in cast("JSONObject", meta).items() if name != key}
    members = {**members, "_meta": kept}
    if not kept:
        del members["_meta"]
    return members


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


Respondent: TypeAlias = Downstream | ForwardedCall
"""A client that can be asked, outside or inside of a call."""


async def ask(
    respondent: Respondent,
    method: str,
    params: JSONObject,
    revision: Revision,
    scope: RequestScope | None,
    key: str | None,
    tasks: KnownTasks,
) -> JSONObject:
    """Return the answer of ``respondent``; request and answer are in the terms of ``revision``. Progress of the answer
    goes to ``scope``, the call in which a modern server asks. ``key`` is the name that a modern server gave the
    question, which a modern client sees, too. A task with which the client answers is noted in ``tasks``. Raises
    `CodedError` for an error reply."""
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
        raise CodedError(INTERNAL_ERROR, "Internal error: the client that was asked is gone") from error
    except trio.TooSlowError as error:
        words = "Internal error: the client that was asked has not answered in time"
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
    raise CodedError(INTERNAL_ERROR, "Internal error: the client's answer makes no sense")


def _check_declared(respondent: Respondent, method: str, params: JSONObject) -> None:
    """Raise `CapabilityMissing` for a request that the client has not declared (ruling 18). A method that is not
    one of the three in `ASKABLE` is passed on unchanged, where the revision has that method; so is one of an
    extension."""
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
        # Progress tokens differ on each connection; tasks are unknown to a client that has none, or another form.
        left_out = {PROGRESS_TOKEN} if respondent.revision.tasks == revision.tasks else {PROGRESS_TOKEN, RELATED_TASK}
        kept = {name: value for name, value in cast("JSONObject", meta).items() if name not in left_out}
        params = {**params, "_meta": kept}
    if method not in METHODS:
        return params
    try:
        return translated(params, METHODS[method].params, revision, respondent.revision)
    except ValueError as error:  # NotExpressible is a ValueError
        raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None
