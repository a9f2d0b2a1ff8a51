"""Prompts: registration, ``prompts/get``, and completion of the arguments of prompts and resource templates."""

from __future__ import annotations

from collections.abc import Callable, Collection
from enum import Enum
from functools import partial
from typing import Any, cast

from ...classes import frozen
from ...jsonrpc.errors import INVALID_PARAMS, CodedError
from ...protocol.converters import structure_params
from ...protocol.fields import JSONObject
from ...protocol.meta import check_meta_keys
from ...protocol.types.content import TextContent
from ...protocol.types.input_required import InputRequiredResult
from ...protocol.types.offers import (
    MAX_COMPLETION_VALUES,
    CompleteParams,
    CompleteResult,
    Completion,
    GetPromptParams,
    GetPromptResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    PromptReference,
)
from ...runtime.requests.scope import RequestScope
from ..calling.results import BLOCKS, media_kinds
from ..calling.signature import BadArguments, UserFunction
from ..context.input_required import FINISHED, InputRequired, settle
from ..options import PromptOptions, Visible, checked_access
from .registration import Offer, Registry
from .resources import Resources
from .uris import normal_uri


@frozen(eq=False)
class RegisteredPrompt(Offer):
    """A prompt and the function that returns its messages."""

    listed: Prompt
    handler: UserFunction
    scopes: frozenset[str] = frozenset()
    visible: Visible | None = None
    tags: frozenset[str] = frozenset()


class Prompts:
    """The prompts of one server."""

    def __init__(self, page_size: int | None) -> None:
        self.registry: Registry[RegisteredPrompt] = Registry("prompt", page_size)

    def add(self, function: Callable[..., Any], options: PromptOptions) -> None:
        """Register ``function`` as a prompt. See `PromptOptions` and `Server.prompt`."""
        meta = options.get("meta")
        check_meta_keys(meta)
        handler = UserFunction.of(function, asyncio=options.get("asyncio", False))
        required = set(handler.schema.get("required", ()))
        properties = cast("dict[str, JSONObject]", handler.schema.get("properties", {}))
        arguments = [
            PromptArgument(argument, schema.get("title"), schema.get("description"), argument in required)
            for argument, schema in properties.items()
        ]
        name, title, description, icons = handler.listed(options)
        prompt = Prompt(name, title, description, arguments or None, icons, meta)
        self.registry.add(name, RegisteredPrompt(prompt, handler, *checked_access(name, options)))

    async def get(
        self, scope: RequestScope, lifespan: Any, arguments: JSONObject | None = None
    ) -> GetPromptResult | InputRequiredResult:
        """Answer ``prompts/get``. Raises `CodedError` (-32602) for an unknown prompt or invalid arguments. If given,
        ``arguments`` replace the arguments in the request."""
        params = structure_params(scope.request.params, GetPromptParams, scope.request.revision)
        entry = self.registry.get_for(scope.exchange.peer.auth, params.name)
        if entry is None:
            raise CodedError(INVALID_PARAMS, f"Unknown prompt: {params.name[:200]}")
        try:
            # Clients send all prompt arguments as strings, so parse each one as the type of the handler's parameter.
            given = params.arguments or {} if arguments is None else arguments
            bound = entry.handler.bind(cast("JSONObject", given), strict=False)
        except BadArguments as error:
            raise CodedError(INVALID_PARAMS, f"Invalid params: {error}") from None
        run = partial(entry.handler.call, scope, lifespan, bound)
        value = await run()
        if isinstance(value, InputRequired):
            value = await settle(value, scope, run)
        if isinstance(value, (GetPromptResult, *FINISHED)):
            return value
        messages = cast("list[Any]", value) if isinstance(value, list | tuple) else [value]
        if any(isinstance(message, media_kinds()) for message in messages):
            from ..calling.media import read_media  # lazy import: few prompts return media

            messages = await read_media(messages, scope)
        return GetPromptResult([_message(message) for message in messages], entry.listed.description)


def _message(value: Any) -> PromptMessage:
    if isinstance(value, PromptMessage):
        return value
    if isinstance(value, str):
        return PromptMessage("user", TextContent(value))
    if isinstance(value, BLOCKS):
        return PromptMessage("user", value)
    raise TypeError(
        f"a prompt must return text, content blocks, PromptMessages or a list of these, not {type(value).__name__}"
    )


_KNOWN = {"value", "arguments"}


class Completions:
    """The completion functions of one server."""

    def __init__(self, prompts: Prompts, resources: Resources) -> None:
        self._prompts = prompts
        self._resources = resources
        self._completers: dict[tuple[str, str, str], UserFunction] = {}
        self._unchecked = set[tuple[str, str, str]]()
        """Keys of completion functions whose prompt or template hasn't been checked yet. It may be registered after the
        function."""
        self.mounted: list[Completions] = []
        """The completion functions of mounted servers. In this server, their prompts may have other names."""

    def __len__(self) -> int:
        return len(self._completers) + sum(map(len, self.mounted))

    def handlers(self) -> Collection[UserFunction]:
        """Return all completion functions of this server, without the completion functions of mounted servers."""
        return self._completers.values()

    def add(
        self, function: Callable[..., Any], *, prompt: str | None, resource: str | None, argument: str, asyncio: bool
    ) -> None:
        """Register ``function`` as a completion function. See `Server.completion`."""
        if (prompt is None) == (resource is None):
            raise TypeError("@server.completion needs exactly one of prompt= and resource=")
        handler = UserFunction.of(function, asyncio=asyncio)
        if "value" not in handler.names or not _KNOWN.issuperset(handler.names):
            raise TypeError(
                f"{function.__name__}: a completion function takes value: str and, optionally, "
                "arguments: dict[str, str]"
            )
        kind, name = ("prompt", prompt) if prompt is not None else ("resource", normal_uri(cast("str", resource)))
        key = kind, name, argument
        if key in self._completers:
            raise ValueError(f"the argument {argument!r} of {key[1]!r} already has a completion function")
        self._unchecked.add(key)
        self._completers[key] = handler

    def check(self) -> None:
        """Raise `ValueError` if the prompt, template or argument of a completion function doesn't exist. Called when
        the server starts."""
        for kind, name, argument in self._unchecked:
            prompt = self._prompts.registry.known(name) if kind == "prompt" else None
            template = self._resources.templates.known(name) if kind == "resource" else None
            named = prompt.handler if prompt is not None else template and template.pattern
            names = named.names if named is not None else None
            if names is None or argument not in names:
                lacks = (
                    f"this {kind} doesn't exist" if names is None else f"its arguments are {', '.join(names) or 'none'}"
                )
                raise ValueError(f"@server.completion: {kind} {name!r} has no argument {argument!r}: {lacks}")
        self._unchecked.clear()

    def find(self, kind: str, name: str, argument: str) -> UserFunction | None:
        """Return the completion function for an argument of the named ``prompt`` or ``resource``. Return `None` if the
        argument has no completion function."""
        own = self._completers.get((kind, name, argument))
        if own is not None:
            return own
        return next(filter(None, (mounted.find(kind, name, argument) for mounted in self.mounted)), None)

    async def complete(self, scope: RequestScope, lifespan: Any) -> CompleteResult:
        """Answer ``completion/complete``.

        If the argument has no completion function, the list of suggestions is empty. Raises `CodedError` (-32602) for
        an unknown prompt or template.
        """
        params = structure_params(scope.request.params, CompleteParams, scope.request.revision)
        ref, auth = params.ref, scope.exchange.peer.auth
        if isinstance(ref, PromptReference):
            kind, name, known = "prompt", ref.name, self._prompts.registry.get_for(auth, ref.name)
        else:
            kind, name = "resource", self._resources.name_of(ref.uri)
            known = self._resources.templates.get_for(auth, name) or self._resources.registry.get_for(auth, name)
        if known is None:
            raise CodedError(INVALID_PARAMS, f"Invalid params: unknown {kind} {name[:200]!r}")
        handler = self.find(kind, name, params.argument.name)
        if handler is None:
            return CompleteResult(Completion([]))
        settled = (params.context.arguments if params.context else None) or {}
        given = {"value": params.argument.value, "arguments": settled}
        value = await handler.call(scope, lifespan, {key: given[key] for key in handler.names})
        return CompleteResult(_completion(value))


def _completion(value: Any) -> Completion:
    """Return the result of a completion function as at most 100 strings (2025-11-25 completion, Completion Results).

    If the function returned more strings, set ``total`` and ``has_more``.
    """
    if not isinstance(value, Completion):
        value = Completion([value] if isinstance(value, str) else [] if value is None else list(value))
    values: list[Any] = value.values[:MAX_COMPLETION_VALUES]
    texts = [str(each.value if isinstance(each, Enum) else each) for each in values]
    if len(texts) == len(value.values):
        return Completion(texts, value.total, value.has_more)
    return Completion(texts, len(value.values) if value.total is None else value.total, True)
