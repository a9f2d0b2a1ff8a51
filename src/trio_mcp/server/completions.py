"""Completion of arguments: one completer per prompt or template and argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..protocol.converters import structure_params
from ..protocol.types.completion import (
    MAX_COMPLETION_VALUES,
    CompleteParams,
    CompleteResult,
    Completion,
    PromptReference,
)
from ..runtime.requests.scope import RequestScope
from .prompts import Prompts
from .resources import Resources
from .signature import UserFunction

_KNOWN = {"value", "arguments"}


class Completions:
    """The completers of one server."""

    def __init__(self, prompts: Prompts, resources: Resources) -> None:
        self._prompts = prompts
        self._resources = resources
        self._completers: dict[tuple[str, str, str], UserFunction] = {}

    def __len__(self) -> int:
        return len(self._completers)

    def add(self, function: Callable[..., Any], *, prompt: str | None, resource: str | None, argument: str) -> None:
        """Register ``function``. See `Server.completion`."""
        if (prompt is None) == (resource is None):
            raise TypeError("a completer belongs to a prompt or to a resource template: give one of the two")
        handler = UserFunction.of(function)
        if "value" not in handler.names or not _KNOWN.issuperset(handler.names):
            raise TypeError(
                f"{function.__name__}: a completer takes value: str and, if it wants, arguments: dict[str, str]"
            )
        key = ("prompt", prompt, argument) if prompt is not None else ("resource", cast("str", resource), argument)
        if key in self._completers:
            raise ValueError(f"there is a completer for {key[1]!r}, {argument!r} already")
        self._completers[key] = handler

    async def complete(self, scope: RequestScope, lifespan: Any) -> CompleteResult:
        """Answer ``completion/complete``. Arguments without a completer have no suggestions; an unknown
        prompt or template is `CodedError` -32602."""
        params = structure_params(scope.request.params, CompleteParams, scope.request.revision)
        ref = params.ref
        if isinstance(ref, PromptReference):
            kind, name, known = "prompt", ref.name, self._prompts.registry.get(ref.name) is not None
        else:
            kind, name = "resource", ref.uri
            known = self._resources.templates.get(name) is not None or self._resources.registry.get(name) is not None
        if not known:
            raise CodedError(INVALID_PARAMS, f"Invalid params: unknown {kind} {name[:200]!r}")
        handler = self._completers.get((kind, name, params.argument.name))
        if handler is None:
            return CompleteResult(Completion([]))
        settled = (params.context.arguments if params.context else None) or {}
        given = {"value": params.argument.value, "arguments": settled}
        value = await handler.call(scope, lifespan, {key: given[key] for key in handler.names})
        return CompleteResult(_cut(value if isinstance(value, Completion) else Completion(list(value))))


def _cut(completion: Completion) -> Completion:
    """Return ``completion`` with at most 100 values (2025-11-25 completion, Completion Results). Where values were left
    out, ``total`` and ``has_more`` are set."""
    values = completion.values
    if len(values) <= MAX_COMPLETION_VALUES:
        return completion
    return Completion(
        values[:MAX_COMPLETION_VALUES],
        completion.total if completion.total is not None else len(values),
        True,
    )
