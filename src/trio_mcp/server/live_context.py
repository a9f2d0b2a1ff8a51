"""The context of a request that came over a connection."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Literal, TypeVar, cast

import trio

from ..jsonrpc.codec import frame_notification
from ..jsonrpc.errors import INVALID_PARAMS, CodedError, ProtocolViolation
from ..jsonrpc.messages import RequestId
from ..runtime.cancellation import Cancellation
from ..runtime.logs import RequestLog
from ..runtime.request_scope import RequestScope
from ..spec.content import TextContent
from ..spec.converters import NotExpressible, structure, unstructure
from ..spec.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, check_url
from ..spec.errors import BadAnswer, CapabilityMissing, NoWayBack
from ..spec.fields import JSONObject
from ..spec.input_required import ASKABLE
from ..spec.meta import check_meta_keys
from ..spec.revisions import Revision
from ..spec.roots import ListRootsResult, Root
from ..spec.sampling import (
    CreateMessageParams,
    CreateMessageResult,
    ModelPreferences,
    SamplingMessage,
    ToolChoice,
)
from ..spec.tools import Tool
from ..spec.trace_context import TraceContext
from ..state.connection_state import MethodUnavailable
from .context import Auth, ElicitAnswer, RequestContext
from .forms import form_schema
from .schemas import SchemaValidator

__all__ = ["LiveContext"]

T = TypeVar("T")


class LiveContext(RequestContext):
    """A view of one `RequestScope`."""

    __slots__ = ("_lifespan", "_scope")

    def __init__(self, scope: RequestScope, lifespan: Any) -> None:
        self._scope = scope
        self._lifespan = lifespan

    # Identity

    @property
    def request_id(self) -> RequestId:
        return self._scope.request.id

    @property
    def revision(self) -> Revision:
        return self._scope.request.revision

    @property
    def session_id(self) -> str | None:
        return self._scope.wiring.peer.session_id

    @property
    def meta(self) -> Mapping[str, Any]:
        return self._scope.request.meta

    @property
    def trace(self) -> TraceContext | None:
        return self._scope.trace

    @property
    def headers(self) -> Mapping[str, str] | None:
        return self._scope.wiring.peer.headers

    @property
    def auth(self) -> Auth | None:
        return None

    @property
    def stateless(self) -> bool:
        # 2026-07-28 basic, Statelessness: each request is processed by itself.
        return self._scope.wiring.stateless or not self._scope.request.revision.handshake

    @property
    def lifespan(self) -> Any:
        return self._lifespan

    # Cancellation

    @property
    def nursery(self) -> trio.Nursery:
        nursery = self._scope.nursery
        assert nursery is not None, "a handler runs inside the nursery"
        return nursery

    @property
    def cancel_scope(self) -> trio.CancelScope:
        return self.nursery.cancel_scope

    @property
    def is_cancelled(self) -> bool:
        return self._scope.is_cancelled

    @property
    def cancellation(self) -> Cancellation | None:
        return self._scope.cancellation

    @property
    def cancelled(self) -> threading.Event:
        return self._scope.event

    # Telling the client

    def progress(self, progress: float, total: float | None = None, message: str | None = None) -> bool:
        return self._scope.progress(progress, total, message)

    @property
    def log(self) -> RequestLog:
        return self._scope.log

    async def send_notification(self, method: str, params: JSONObject | None = None) -> None:
        line = frame_notification(method, params) + b"\n"
        await trio.lowlevel.checkpoint_if_cancelled()
        scope = self._scope
        await scope.outbox.room()
        if not scope.finished:
            scope.outbox.put(line, scope)

    # Rounds

    @property
    def input_responses(self) -> Mapping[str, JSONObject]:
        continuation = self._scope.request.continuation
        return {} if continuation is None else continuation.responses

    @property
    def request_state(self) -> str:
        continuation = self._scope.request.continuation
        return "" if continuation is None else continuation.state

    # Asking the client

    def client_supports(self, capability: str) -> bool:
        return self._scope.request.capabilities.supports(capability)

    async def send_request(self, method: str, params: JSONObject | None, result_type: type[T]) -> T:
        result = await self._ask_raw(method, params)
        try:
            return structure(result, result_type)
        except ValueError as error:
            raise self._bad_answer(f"the result of {method} makes no sense: {error}") from None

    def _bad_answer(self, reason: str) -> ProtocolViolation:
        # 2026-07-28 mrtr, Error Handling: there the answers are parameters of the request that brought them.
        return ProtocolViolation(reason) if self.revision.server_requests else BadAnswer(reason)

    def _ask_raw(self, method: str, params: JSONObject | None) -> Awaitable[Any]:
        self._check_way_back()
        if self.revision.server_requests:
            return self._scope.ask(method, params, self.revision)
        if method not in ASKABLE:
            raise MethodUnavailable(method, self.revision)
        return self._scope.require_input(method, params)

    def _ask(self, method: str, params: Any, result_type: type[T]) -> Awaitable[T]:
        check_meta_keys(params.meta)
        try:
            data = unstructure(params, self.revision)
        except NotExpressible as error:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None
        return self.send_request(method, data, result_type)

    def _check_way_back(self) -> None:
        scope = self._scope
        if not self.revision.server_requests and not scope.request.method.may_ask:
            raise NoWayBack(f"{scope.request.method.name} cannot ask its client in revision {self.revision}")
        if scope.wiring.stateless and scope.rounds is None:
            raise NoWayBack(
                "this server is run stateless, so it cannot wait for an answer of its client: declare the tool with "
                "replay=True or return input-required, or serve it statefully"
            )

    def _check(self, *capabilities: str) -> None:
        """The gate, in its order: no way back, capability, sub-capability (DESIGN ruling 18)."""
        self._check_way_back()
        for capability in capabilities:
            if not self.client_supports(capability):
                raise CapabilityMissing(capability, self.revision)

    async def sample(
        self,
        messages: str | Sequence[SamplingMessage],
        *,
        max_tokens: int,
        system_prompt: str | None = None,
        model_preferences: ModelPreferences | None = None,
        temperature: float | None = None,
        stop_sequences: list[str] | None = None,
        include_context: Literal["none", "thisServer", "allServers"] | None = None,
        metadata: JSONObject | None = None,
        tools: list[Tool] | None = None,
        tool_choice: ToolChoice | None = None,
        meta: JSONObject | None = None,
    ) -> CreateMessageResult:
        self._check("sampling")
        if tools is not None or tool_choice is not None:  # 2025-11-25 sampling, Tools in Sampling
            self._check("sampling.tools")
        if include_context in ("thisServer", "allServers") and self.revision.sub_capabilities:
            self._check("sampling.context")
        if isinstance(messages, str):
            messages = [SamplingMessage("user", TextContent(messages))]
        params = CreateMessageParams(
            list(messages),
            max_tokens,
            model_preferences,
            system_prompt,
            include_context,
            temperature,
            stop_sequences,
            metadata,
            tools,
            tool_choice,
            meta=meta,
        )
        return await self._ask("sampling/createMessage", params, CreateMessageResult)

    async def sample_raw(self, params: JSONObject) -> JSONObject:
        return await self._ask_raw("sampling/createMessage", params)

    async def elicit(self, message: str, form: type | JSONObject, *, meta: JSONObject | None = None) -> ElicitAnswer:
        self._check("elicitation", "elicitation.form")
        schema = form_schema(form)
        answer = await self._ask("elicitation/create", ElicitFormParams(message, schema, meta=meta), ElicitResult)
        if answer.action == "accept" and (fault := SchemaValidator(schema).faults(answer.content or {})):
            raise self._bad_answer(f"the accepted form does not fit what was asked: {fault}")
        return ElicitAnswer(answer.action, answer.content if answer.action == "accept" else None)

    async def elicit_url(
        self, message: str, url: str, elicitation_id: str, *, meta: JSONObject | None = None
    ) -> ElicitAnswer:
        self._check("elicitation", "elicitation.url")
        check_url(url)
        if not elicitation_id:
            raise CodedError(INVALID_PARAMS, "Invalid params: a URL elicitation needs an elicitation id")
        answer = await self._ask(
            "elicitation/create", ElicitURLParams(message, url, elicitation_id, meta=meta), ElicitResult
        )
        return ElicitAnswer(answer.action)

    async def elicit_raw(self, params: JSONObject) -> JSONObject:
        return await self._ask_raw("elicitation/create", params)

    async def list_roots(self) -> list[Root]:
        self._check("roots")
        return (await self.send_request("roots/list", None, ListRootsResult)).roots

    async def list_roots_raw(self) -> JSONObject:
        return cast("JSONObject", await self._ask_raw("roots/list", None))
