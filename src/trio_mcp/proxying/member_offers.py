"""The offers of members as a gateway has them: entries of a server's registries, whose handlers forward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any, TypeAlias, cast

import attrs
import trio

from ..classes import frozen
from ..hosting.catalogue import CatalogueEntry, parse_uri
from ..jsonrpc.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, CodedError, ProtocolViolation
from ..protocol.converters import structure_result
from ..protocol.fields import JSONObject
from ..protocol.param_headers import ParamHeader, param_headers
from ..protocol.types.prompts import CompleteResult, Completion, Prompt
from ..protocol.types.resources import Resource, ResourceTemplate
from ..protocol.types.tools import Tool, ToolExecution
from ..runtime.peer import Auth
from ..runtime.requests.scope import RequestScope
from ..server.calling.signature import UserFunction
from ..server.offers.prompts import Completions, Prompts, RegisteredPrompt
from ..server.offers.resources import LONGEST_URI, RegisteredResource, Resources, UriTemplate
from ..server.offers.tools import RegisteredTool
from ..server.options import NOT_CACHED, CacheHints
from ..tasks.host import TaskHost
from .members import Forwarder

_Forward: TypeAlias = Callable[[RequestScope, JSONObject], Awaitable[Any]]


@frozen(eq=False)
class MemberFunction(UserFunction):
    """A handler that forwards the request, with nothing of it read here."""

    forward: _Forward = attrs.field(kw_only=True)

    @classmethod
    def of_member(cls, forward: _Forward) -> MemberFunction:
        """Return a handler that calls ``forward``."""
        return cls(*_any_function().copied_fields(), forward=forward)

    def bind(self, arguments: JSONObject, *, strict: bool = True) -> dict[str, Any]:
        """Return nothing: the member reads the arguments."""
        return {}

    def call(
        self, scope: RequestScope, lifespan: Any, bound: dict[str, Any], tasks: TaskHost | None = None
    ) -> Awaitable[Any]:
        """Forward the request: see `UserFunction.call`."""
        return self.forward(scope, bound)


@cache
def _any_function() -> UserFunction:
    async def call_member(arguments: dict[str, Any]) -> Any:
        """Do what a member does."""

    return UserFunction.of(call_member)


class MemberOffers:
    """Makes the entries of a gateway of those of a catalogue."""

    def __init__(self, forwarder: Forwarder) -> None:
        self.forwarder = forwarder

    def tool(self, entry: CatalogueEntry[Tool]) -> RegisteredTool:
        """Return a tool, each call of which may be a task of the gateway."""
        try:
            headers = param_headers(entry.item.input_schema)
        except ValueError:
            headers = tuple[ParamHeader, ...]()
        schema = entry.item.input_schema
        if schema.get("type") != "object":  # some clients lose all tools by one schema like that
            schema = {**schema, "type": "object"}
        listed = attrs.evolve(entry.renamed, execution=ToolExecution("optional"), input_schema=schema)
        handler = self._function(entry)
        return RegisteredTool(listed, handler, handler.bind, headers, whole_arguments=True, task="optional")

    def prompt(self, entry: CatalogueEntry[Prompt]) -> RegisteredPrompt:
        """Return a prompt."""
        return RegisteredPrompt(entry.renamed, self._function(entry))

    def resource(self, entry: CatalogueEntry[Any]) -> RegisteredResource:
        """Return a resource or a template, whose URIs are read by the member."""
        return self._resource(entry.renamed, entry.member)

    def unlisted(self, member: str, uri: str) -> RegisteredResource:
        """Return the resource ``uri`` of a member, which need not be in its lists."""
        return self._resource(Resource(uri, uri), member)

    def _resource(self, listed: Resource | ResourceTemplate, member: str) -> RegisteredResource:

        async def forward(scope: RequestScope, _: JSONObject) -> Any:
            parsed = parse_uri(cast("str", scope.request.params["uri"]))
            assert parsed is not None, "the URI led here"
            return await self.forwarder.forward(scope, member, {"uri": parsed[1]})

        return RegisteredResource(listed, MemberFunction.of_member(forward), NOT_CACHED, pattern=MemberURIs(member))

    def _function(self, entry: CatalogueEntry[Any]) -> MemberFunction:
        async def forward(scope: RequestScope, bound: JSONObject) -> Any:
            return await self.forwarder.forward(scope, entry.member, {"name": entry.item.name, **bound})

        return MemberFunction.of_member(forward)


class MemberURIs(UriTemplate):
    """Matches all URIs of a member, which knows better which of them are its own."""

    def __init__(self, member: str) -> None:
        self._member = member

    def match(self, uri: str) -> dict[str, str] | None:
        """Return no values for a URI of the member: see `UriTemplate.match`."""
        parsed = parse_uri(uri)
        return {} if parsed is not None and parsed[0] == self._member else None


class MemberResources(Resources):
    """The resources of members, also those that no member lists, and who watches them."""

    def __init__(self, page_size: int | None, hints: CacheHints, offers: MemberOffers) -> None:
        super().__init__(page_size, hints)
        self._offers = offers
        self._watchers: dict[str, Counter[str]] = {}
        """How many clients watch which URIs of which members."""
        self.news = trio.lowlevel.ParkingLot()
        """Tasks that wait for another set of watched resources."""

    def find(
        self, uri: str, auth: Auth | None, *, disabled: bool = False
    ) -> tuple[RegisteredResource, dict[str, str]] | None:
        """Return the entry that serves ``uri``: see `Resources.find`."""
        found = super().find(uri, auth, disabled=disabled)
        if found is not None or len(uri) > LONGEST_URI:
            return found
        parsed = parse_uri(uri)
        is_of_member = parsed is not None and parsed[0] in self._offers.forwarder.group.statuses
        return (self._offers.unlisted(parsed[0], uri), {}) if parsed is not None and is_of_member else None

    def change_watchers(self, uri: str, delta: int) -> None:
        """Note who watches ``uri``: see `Resources.change_watchers`."""
        parsed = parse_uri(uri)
        if parsed is None:
            return
        member, own = parsed
        watchers = self._watchers.setdefault(member, Counter())
        watchers[own] += delta
        if not watchers[own]:
            del watchers[own]
        if not watchers:
            del self._watchers[member]
        self.news.unpark_all()

    def watched_of(self, member: str) -> set[str]:
        """Return the URIs, as ``member`` has them, that clients watch."""
        return set(self._watchers.get(member, ()))


class MemberCompletions(Completions):
    """The completers of all members."""

    def __init__(self, prompts: Prompts, resources: Resources, forwarder: Forwarder) -> None:
        super().__init__(prompts, resources)
        self._forwarder = forwarder

    def __len__(self) -> int:
        return 1

    def find(self, kind: str, name: str, argument: str) -> UserFunction | None:
        """Return a function that asks the member: see `Completions.find`."""
        is_prompt = kind == "prompt"
        entry = self._forwarder.group.catalogue.find("prompts" if is_prompt else "resource_templates", name)
        if entry is None:
            return None
        own = {"name": entry.item.name} if is_prompt else {"uri": entry.item.uri_template}

        async def complete(scope: RequestScope, _: JSONObject) -> Completion:
            ref = {**cast("JSONObject", scope.request.params["ref"]), **own}
            try:
                result = await self._forwarder.forward(scope, entry.member, {"ref": ref})
                return structure_result(scope.request.method.name, dict(result), CompleteResult).completion
            except CodedError as error:
                if error.code != METHOD_NOT_FOUND:
                    raise
                return Completion([])
            except ProtocolViolation:
                words = "Internal error: the suggestions of the server behind make no sense"
                raise CodedError(INTERNAL_ERROR, words) from None

        return MemberFunction.of_member(complete)
