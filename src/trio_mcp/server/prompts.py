"""Prompts: registration and ``prompts/get``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

from ..classes import frozen
from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..protocol.converters import structure_params
from ..protocol.fields import JSONObject
from ..protocol.meta import check_meta_keys
from ..protocol.types.content import TextContent
from ..protocol.types.input_required import InputRequiredResult
from ..protocol.types.prompts import GetPromptParams, GetPromptResult, Prompt, PromptArgument, PromptMessage
from ..runtime.requests.scope import RequestScope
from .input_required import InputRequired, settle
from .options import PromptOptions
from .registry import Registry, checked_scopes
from .results import BLOCKS
from .signature import BadArguments, UserFunction


@frozen(eq=False)
class RegisteredPrompt:
    """A prompt with its function."""

    prompt: Prompt
    handler: UserFunction
    scopes: frozenset[str]


class Prompts:
    """The prompts of one server."""

    def __init__(self, page_size: int | None) -> None:
        self.registry: Registry[RegisteredPrompt] = Registry("prompt", page_size)

    def add(self, function: Callable[..., Any], options: PromptOptions) -> None:
        """Register ``function``. See `PromptOptions` and `Server.prompt`."""
        meta = options.get("meta")
        check_meta_keys(meta)
        handler = UserFunction.of(function)
        required = set(handler.schema.get("required", ()))
        properties = cast("dict[str, JSONObject]", handler.schema.get("properties", {}))
        arguments = [
            PromptArgument(
                argument,
                properties[argument].get("title"),
                properties[argument].get("description"),
                argument in required,
            )
            for argument in handler.names
        ]
        name, title, description, icons = handler.listed(options)
        prompt = Prompt(name, title, description, arguments or None, icons, meta)
        scopes = checked_scopes(name, options.get("scopes", ()))
        self.registry.add(name, RegisteredPrompt(prompt, handler, scopes))

    async def get(self, scope: RequestScope, lifespan: Any) -> GetPromptResult | InputRequiredResult:
        """Answer ``prompts/get``. Unknown prompts and bad arguments are `CodedError` -32602."""
        params = structure_params(scope.request.params, GetPromptParams, scope.request.revision)
        entry = self.registry.get(params.name)
        if entry is None:
            raise CodedError(INVALID_PARAMS, f"Unknown prompt: {params.name[:200]}")
        try:
            # Prompt arguments are strings on the wire, also where the handler wants another type.
            bound = entry.handler.bind(cast("JSONObject", params.arguments or {}), strict=False)
        except BadArguments as error:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None
        run = partial(entry.handler.call, scope, lifespan, bound)
        value = await run()
        if isinstance(value, InputRequired):
            value = await settle(value, scope, run)
        if isinstance(value, GetPromptResult | InputRequiredResult):
            return value
        messages = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
        return GetPromptResult([_message(message) for message in messages], entry.prompt.description)


def _message(value: Any) -> PromptMessage:
    if isinstance(value, PromptMessage):
        return value
    if isinstance(value, str):
        return PromptMessage("user", TextContent(value))
    if isinstance(value, BLOCKS):
        return PromptMessage("user", value)
    raise TypeError(
        f"a prompt returns text, content blocks, PromptMessages or a list of these, not {type(value).__name__}"
    )
