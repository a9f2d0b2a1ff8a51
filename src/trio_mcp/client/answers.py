"""Answers: what a client does with the requests of its server."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any, cast

from ..jsonrpc.errors import INVALID_PARAMS, METHOD_NOT_FOUND, CodedError
from ..runtime.request_scope import RequestScope
from ..runtime.workers import run_in_worker
from ..spec.capabilities import ClientCapabilities, Elicitation, Roots, Sampling
from ..spec.converters import structure_params
from ..spec.elicitation import ElicitFormParams, ElicitParams, ElicitResult
from ..spec.roots import ListRootsResult
from ..spec.sampling import CreateMessageParams
from .options import ClientSettings

__all__ = ["Answers"]


class Answers:
    """The handlers a client was opened with."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings

    @property
    def capabilities(self) -> ClientCapabilities:
        """What to declare: exactly what there are handlers for."""
        settings = self._settings
        sampling = elicitation = None
        if settings.sampling is not None:
            sampling = Sampling({} if settings.sampling_context else None, {} if settings.sampling_tools else None)
        if settings.elicitation is not None or settings.elicitation_url is not None:
            elicitation = Elicitation(
                {} if settings.elicitation is not None else None,
                {} if settings.elicitation_url is not None else None,
            )
        roots = Roots(list_changed=True) if settings.roots is not None else None
        return ClientCapabilities(roots=roots, sampling=sampling, elicitation=elicitation)

    async def answer(self, scope: RequestScope) -> Any:
        """The result of one request of the server. What was not declared is refused (-32601; an undeclared
        mode of elicitation -32602), never left without an answer."""
        match scope.request.method.name:
            case "sampling/createMessage" if self._settings.sampling is not None:
                params = structure_params(scope.request.params, CreateMessageParams)
                return await self._run(scope, self._settings.sampling, params)
            case "elicitation/create" if self._settings.elicitation or self._settings.elicitation_url:
                return await self._elicit(scope)
            case "roots/list" if self._settings.roots is not None:
                return await self._roots(scope)
            case name:
                raise CodedError(METHOD_NOT_FOUND, "Method not found", {"method": name})

    async def _elicit(self, scope: RequestScope) -> ElicitResult:
        params = structure_params(scope.request.params, cast("type[ElicitParams]", ElicitParams))
        is_form = isinstance(params, ElicitFormParams)
        handler = self._settings.elicitation if is_form else self._settings.elicitation_url
        if handler is None:
            # 2025-11-25 elicitation, Error Handling: MUST return -32602 for an undeclared mode.
            raise CodedError(
                INVALID_PARAMS,
                f"Invalid params: elicitation mode {'form' if is_form else 'url'} was not declared",
            )
        answer = await self._run(scope, cast("Callable[..., Any]", handler), params)
        return answer if isinstance(answer, ElicitResult) else ElicitResult("accept", answer)

    async def _roots(self, scope: RequestScope) -> ListRootsResult:
        roots = self._settings.roots
        return ListRootsResult(list(await self._run(scope, roots) if callable(roots) else roots or ()))

    async def _run(self, scope: RequestScope, handler: Callable[..., Any], *args: Any) -> Any:
        # An object with an async __call__ is an async function, too.
        if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(type(handler).__call__):
            return await handler(*args)
        result = await run_in_worker(partial(handler, *args), scope.workers, scope.wiring.limits.cleanup_grace)
        return await result if inspect.isawaitable(result) else result
