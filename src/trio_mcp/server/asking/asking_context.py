"""AskingContext: the questions of a context to its client."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar, Unpack, cast

from ...jsonrpc.errors import INVALID_PARAMS, CodedError, ProtocolViolation
from ...protocol.converters import NotExpressible, structure
from ...protocol.errors import BadAnswer, CapabilityMissing, MethodUnavailable, NoWayBack
from ...protocol.fields import JSONObject
from ...protocol.revisions import ASKED_BY
from ...protocol.schema_validator import SchemaValidator
from ...protocol.types.content import TextContent
from ...protocol.types.elicitation import ElicitFormParams, ElicitParams, ElicitResult, ElicitURLParams
from ...protocol.types.input_required import ASKABLE, for_elicitation, for_sampling
from ...protocol.types.sampling import CreateMessageParams, CreateMessageResult, ListRootsResult, Root, SamplingMessage
from ..context.elicit_answer import ElicitAnswer
from ..context.request_context import RequestContext
from ..options import SamplingOptions
from ..signatures.forms import form_schema
from .client_tasks import capability_for_task
from .questions import AS_TASK, said

T = TypeVar("T")


class AskingContext(RequestContext):
    """Checks and sends the questions of a handler, and checks the answers. Subclasses say which questions the client
    takes, in `_no_way_back` and `_declares`, and how a question is sent, in `_deliver`."""

    __slots__ = ()

    def _no_way_back(self) -> NoWayBack | None:
        """Return the error for each question where the client cannot be asked at all; `None` elsewhere."""
        raise NotImplementedError

    def _declares(self, capability: str) -> bool:
        """Return whether the client declared ``capability``, and its revision has that capability."""
        raise NotImplementedError

    def _deliver(self, method: str, params: JSONObject | None) -> Awaitable[Any]:
        """Send this question and return its result, plain data. Raises as `RequestContext.send_request`."""
        raise NotImplementedError

    def _deliver_as_task(self, method: str, params: JSONObject | None, ttl: float) -> Awaitable[Any]:
        """Have the client run this question as a task, and return its result, plain data. Raises as
        `RequestContext.send_request`."""
        raise NotImplementedError

    def client_supports(self, capability: str) -> bool:
        if capability.partition(".")[0] in ASKED_BY and self._no_way_back() is not None:
            return False
        return self._declares(capability)

    async def send_request(
        self, method: str, params: JSONObject | None, result_type: type[T], *, task_ttl: float | None = None
    ) -> T:
        return self._structured(method, await self._ask_raw(method, params, task_ttl), result_type)

    def _structured(self, method: str, result: Any, result_type: type[T]) -> T:
        try:
            return structure(result, result_type)
        except ValueError as error:
            raise self._bad_answer(f"the result of {method} makes no sense: {error}") from None

    def _bad_answer(self, reason: str) -> ProtocolViolation:
        # 2026-07-28 mrtr, Error Handling: in modern revisions answers arrive as parameters of a request.
        return ProtocolViolation(reason) if self.revision.server_requests else BadAnswer(reason)

    def _ask_raw(self, method: str, params: JSONObject | None, task_ttl: float | None = None) -> Awaitable[Any]:
        self._check()
        if method in ASKABLE and params is not None and "task" in params:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {AS_TASK}")
        if task_ttl is not None:
            return self._send(method, params, task_ttl)
        if not self.revision.server_requests and method not in ASKABLE:
            raise MethodUnavailable(method, self.revision)
        return self._deliver(method, params)

    def _send(self, method: str, params: JSONObject | None, task_ttl: float | None) -> Awaitable[Any]:
        """Send a question, as a task of the client unless ``task_ttl`` is `None`."""
        if task_ttl is None:
            return self._deliver(method, params)
        self._check(capability_for_task(method))
        return self._deliver_as_task(method, params, task_ttl)

    async def _ask(
        self,
        method: str,
        params: CreateMessageParams | ElicitParams,
        result_type: type[T],
        task_ttl: float | None = None,
    ) -> T:
        """Send a question that `_check` has let pass, and return its result as a ``result_type``."""
        try:
            data = said(params, self.revision)
        except NotExpressible as error:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None
        return self._structured(method, await self._send(method, data, task_ttl), result_type)

    def _check(self, *capabilities: str) -> None:
        """Raise `NoWayBack`, else `CapabilityMissing`, which names the whole before its part (DESIGN ruling 18)."""
        if (no_way_back := self._no_way_back()) is not None:
            raise no_way_back
        for capability in capabilities:
            if not self._declares(capability):
                raise CapabilityMissing([each for each in capabilities if not self._declares(each)], self.revision)

    async def sample(
        self,
        messages: str | Sequence[SamplingMessage],
        *,
        max_tokens: int,
        task_ttl: float | None = None,
        **options: Unpack[SamplingOptions],
    ) -> CreateMessageResult:
        if "task" in options:
            raise TypeError(AS_TASK)
        has_tools = options.get("tools") is not None or options.get("tool_choice") is not None
        self._check(*for_sampling(tools=has_tools, context=options.get("include_context")))
        if isinstance(messages, str):
            messages = [SamplingMessage("user", TextContent(messages))]
        params = CreateMessageParams(list(messages), max_tokens, **options)
        return await self._ask("sampling/createMessage", params, CreateMessageResult, task_ttl)

    async def sample_raw(self, params: JSONObject) -> JSONObject:
        return await self._ask_raw("sampling/createMessage", params)

    async def elicit(
        self, message: str, form: type | JSONObject, *, meta: JSONObject | None = None, task_ttl: float | None = None
    ) -> ElicitAnswer:
        self._check(*for_elicitation("form"))
        schema = form_schema(form)
        params = ElicitFormParams(message, schema, meta=meta)
        answer = await self._ask("elicitation/create", params, ElicitResult, task_ttl)
        if answer.action == "accept" and (fault := SchemaValidator(schema).faults(answer.content or {})):
            raise self._bad_answer(f"the accepted form does not fit what was asked: {fault}")
        return ElicitAnswer(answer.action, answer.content if answer.action == "accept" else None)

    async def elicit_url(
        self,
        message: str,
        url: str,
        elicitation_id: str,
        *,
        meta: JSONObject | None = None,
        task_ttl: float | None = None,
    ) -> ElicitAnswer:
        self._check(*for_elicitation("url"))
        params = ElicitURLParams(message, url, elicitation_id, meta=meta)
        answer = await self._ask("elicitation/create", params, ElicitResult, task_ttl)
        return ElicitAnswer(answer.action)

    async def elicit_raw(self, params: JSONObject) -> JSONObject:
        return await self._ask_raw("elicitation/create", params)

    async def list_roots(self) -> list[Root]:
        self._check("roots")
        return self._structured("roots/list", await self._deliver("roots/list", None), ListRootsResult).roots

    async def list_roots_raw(self) -> JSONObject:
        return cast("JSONObject", await self._ask_raw("roots/list", None))
