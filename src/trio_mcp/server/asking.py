"""AskingContext: the questions of a context to its client."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar, Unpack, cast

from ..jsonrpc.errors import INVALID_PARAMS, CodedError, ProtocolViolation
from ..spec.content import TextContent
from ..spec.converters import NotExpressible, structure, unstructure
from ..spec.elicitation import ElicitFormParams, ElicitResult, ElicitURLParams, check_url
from ..spec.errors import BadAnswer, CapabilityMissing, MethodUnavailable
from ..spec.fields import JSONObject
from ..spec.input_required import ASKABLE
from ..spec.meta import check_meta_keys
from ..spec.roots import ListRootsResult, Root
from ..spec.sampling import CreateMessageParams, CreateMessageResult, SamplingMessage
from ..spec.schemas import SchemaValidator
from .context import RequestContext
from .elicit_answer import ElicitAnswer
from .forms import form_schema
from .options import SamplingOptions

__all__ = ["AskingContext"]

T = TypeVar("T")


class AskingContext(RequestContext):
    """Gates, builds and checks the questions. How one reaches the client is said by whoever inherits, in
    `_check_way_back` and `_deliver`."""

    __slots__ = ()

    def _check_way_back(self) -> None:
        """Raise `NoWayBack` where the client cannot be asked anything."""
        raise NotImplementedError

    def _deliver(self, method: str, params: JSONObject | None) -> Awaitable[Any]:
        """The result of this question, plain data. Raises as `RequestContext.send_request`."""
        raise NotImplementedError

    async def send_request(self, method: str, params: JSONObject | None, result_type: type[T]) -> T:
        return self._structured(method, await self._ask_raw(method, params), result_type)

    def _structured(self, method: str, result: Any, result_type: type[T]) -> T:
        try:
            return structure(result, result_type)
        except ValueError as error:
            raise self._bad_answer(f"the result of {method} makes no sense: {error}") from None

    def _bad_answer(self, reason: str) -> ProtocolViolation:
        # 2026-07-28 mrtr, Error Handling: there the answers are parameters of the request that brought them.
        return ProtocolViolation(reason) if self.revision.server_requests else BadAnswer(reason)

    def _ask_raw(self, method: str, params: JSONObject | None) -> Awaitable[Any]:
        self._check_way_back()
        if not self.revision.server_requests and method not in ASKABLE:
            raise MethodUnavailable(method, self.revision)
        return self._deliver(method, params)

    async def _ask(self, method: str, params: Any, result_type: type[T]) -> T:
        """What `_check` has let pass."""
        check_meta_keys(params.meta)
        try:
            data = unstructure(params, self.revision)
        except NotExpressible as error:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None
        return self._structured(method, await self._deliver(method, data), result_type)

    def _check(self, *capabilities: str) -> None:
        """The gate, in its order: no way back, capability, sub-capability (DESIGN ruling 18)."""
        self._check_way_back()
        for capability in capabilities:
            if not self.client_supports(capability):
                raise CapabilityMissing(capability, self.revision)

    async def sample(
        self, messages: str | Sequence[SamplingMessage], *, max_tokens: int, **options: Unpack[SamplingOptions]
    ) -> CreateMessageResult:
        self._check("sampling")
        # 2025-11-25 sampling, Tools in Sampling
        if options.get("tools") is not None or options.get("tool_choice") is not None:
            self._check("sampling.tools")
        if options.get("include_context") in ("thisServer", "allServers") and self.revision.sub_capabilities:
            self._check("sampling.context")
        if isinstance(messages, str):
            messages = [SamplingMessage("user", TextContent(messages))]
        params = CreateMessageParams(list(messages), max_tokens, **options)
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
        return self._structured("roots/list", await self._deliver("roots/list", None), ListRootsResult).roots

    async def list_roots_raw(self) -> JSONObject:
        return cast("JSONObject", await self._ask_raw("roots/list", None))
