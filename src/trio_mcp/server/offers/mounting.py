"""Mounting: a server includes the tools, resources and prompts of another server under prefixed names. The handlers run
with the lifespan value of the other server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeAlias

import attrs

from ...classes import frozen
from ...runtime.requests.host import RequestHost
from ...runtime.requests.scope import RequestScope
from ..calling.signature import UserFunction
from ..context.request_context import GetTaskHost
from .prompts import Completions, Prompts, RegisteredPrompt
from .registration import Mirror, Registry
from .resources import RegisteredResource, Resources
from .tools import RegisteredTool, Tools, check_name

Offers: TypeAlias = tuple[Tools, Resources, Prompts, Completions]
LifespanIn: TypeAlias = Callable[[RequestHost], Any]
"""Function that takes the host of a server run, and returns the value that the server's lifespan yielded in that
run."""

_JOINT: Final = "_"  # use an underscore, because model providers rarely allow dots in tool names


def mount_offers(offers: Offers, shown_in: Offers, prefix: str, lifespan_in: LifespanIn) -> None:
    """Add the tools, resources and prompts of one server, ``offers``, to another server, ``shown_in``.

    ``lifespan_in`` returns the lifespan value for the handlers in ``offers``. `Server.mount` documents the
    `ValueError`.
    """
    before = prefix + _JOINT if prefix else ""
    if before:
        check_name(before)
    tools, resources, prompts, completions = offers
    all_tools, all_resources, all_prompts, all_completions = shown_in

    def tool_name(name: str) -> str:
        check_name(before + name)
        return before + name

    def tool(entry: RegisteredTool) -> RegisteredTool:
        all_tools.record_task_support(entry.task)
        listed = attrs.evolve(entry.listed, name=before + entry.listed.name)
        return attrs.evolve(entry, listed=listed, handler=MountedFunction.of_server(entry.handler, lifespan_in))

    def prompt(entry: RegisteredPrompt) -> RegisteredPrompt:
        listed = attrs.evolve(entry.listed, name=before + entry.listed.name)
        return attrs.evolve(entry, listed=listed, handler=MountedFunction.of_server(entry.handler, lifespan_in))

    def resource(entry: RegisteredResource) -> RegisteredResource:
        return attrs.evolve(entry, handler=MountedFunction.of_server(entry.handler, lifespan_in))

    mirrors: list[tuple[Registry[Any], Mirror[Any]]] = [
        (tools.registry, Mirror(all_tools.registry, tool_name, tool)),
        (prompts.registry, Mirror(all_prompts.registry, before.__add__, prompt)),
        (resources.registry, Mirror(all_resources.registry, str, resource)),
        (resources.templates, Mirror(all_resources.templates, str, resource)),
    ]
    for registry, mirror in mirrors:
        for name in registry.names():
            mirror.check_free(name)
    for registry, mirror in mirrors:
        registry.mirror_in(mirror)
    all_resources.mounted.append(resources)
    # Unlisted resources are files of skills. Their handlers are this package's own, and need no lifespan value.
    all_resources.unlisted += resources.unlisted
    all_completions.mounted.append(MountedCompletions(completions, before, lifespan_in))


@frozen(eq=False)
class MountedFunction(UserFunction):
    """A handler of a mounted server. It gets the lifespan value of the mounted server, not of the server that mounts
    it."""

    handler: UserFunction = attrs.field(kw_only=True)
    lifespan_in: LifespanIn = attrs.field(kw_only=True)

    @classmethod
    def of_server(cls, handler: UserFunction, lifespan_in: LifespanIn) -> MountedFunction:
        """Return ``handler`` in a wrapper that passes it the lifespan value of the mounted server."""
        return cls(*handler.copied_fields(), handler=handler, lifespan_in=lifespan_in)

    def call(
        self, scope: RequestScope, lifespan: Any, bound: dict[str, Any], tasks: GetTaskHost = None
    ) -> Awaitable[Any]:
        """Call the handler function with the lifespan value of the mounted server. See `UserFunction.call`."""
        return self.handler.call(scope, self.lifespan_in(scope.runner.host), bound, tasks)


class MountedCompletions(Completions):
    """The completion functions of a mounted server. The names of the mounted server's prompts begin with ``prefix``."""

    def __init__(self, completions: Completions, prefix: str, lifespan_in: LifespanIn) -> None:
        self._own = completions
        self._prefix = prefix
        self._lifespan_in = lifespan_in

    def __len__(self) -> int:
        return len(self._own)

    def check(self) -> None:
        """Do nothing, because the mounted server itself checks its completion functions."""

    def find(self, kind: str, name: str, argument: str) -> UserFunction | None:
        """Return a completion function of the mounted server. See `Completions.find`."""
        if kind == "prompt":
            if not name.startswith(self._prefix):
                return None
            name = name.removeprefix(self._prefix)
        handler = self._own.find(kind, name, argument)
        return None if handler is None else MountedFunction.of_server(handler, self._lifespan_in)
