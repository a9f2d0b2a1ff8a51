"""Entries for a gateway's registries that represent the tools, prompts and resources of its members. Their handlers
forward requests to the members.

The skills of all members have catalogue URIs (SEP-2640). Digests stay the same, because the bytes do. A member's list
is forwarded page by page, one member after the other.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar, cast

import attrs
import trio

from ..classes import frozen
from ..client.client import Client, request_skills
from ..hosting.catalogue import CatalogueEntry, catalogue_uri, parse_uri
from ..jsonrpc.codec import decode_base64url, decode_value, encode_value
from ..jsonrpc.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, CodedError, ProtocolViolation
from ..protocol.converters import structure_result
from ..protocol.errors import MethodUnavailable
from ..protocol.fields import JSONObject
from ..protocol.param_headers import ParamHeader, param_headers
from ..protocol.types.offers import CompleteResult, Completion, PageParams, Prompt, Resource, ResourceTemplate
from ..protocol.types.skills import (
    SKILLS_EXTENSION,
    GetSkillParams,
    GetSkillResult,
    ListSkillsResult,
    ReadDirectoryParams,
    ReadDirectoryResult,
    Skill,
)
from ..protocol.types.tools import Tool, ToolExecution
from ..runtime.peer import Auth
from ..runtime.requests.scope import RequestScope
from ..server.calling.signature import UserFunction
from ..server.offers.prompts import Completions, Prompts, RegisteredPrompt
from ..server.offers.resources import LONGEST_URI, RegisteredResource, Resources, UriTemplate
from ..server.offers.tools import RegisteredTool
from ..server.options import NOT_CACHED, CacheHints
from ..skills.loading import SkillsExtension
from .forwarding import UPSTREAM_ERRORS, upstream_error
from .members import Forwarder, each_changed, member_lost, with_uri

if TYPE_CHECKING:
    from ..tasks.host import TaskHost

_Forward: TypeAlias = Callable[[RequestScope, JSONObject], Awaitable[Any]]


@frozen(eq=False)
class MemberFunction(UserFunction):
    """The handler of a member server's tool, prompt or resource in a gateway.

    It forwards the request to the member without reading the arguments.
    """

    forward: _Forward = attrs.field(kw_only=True)

    @classmethod
    def of_member(cls, forward: _Forward) -> MemberFunction:
        """Return the handler for a tool, prompt or resource of a member server.

        The handler passes each request to the function ``forward``, which sends the request to the member.
        """
        return cls(*_any_function().copied_fields(), forward=forward)

    def bind(self, arguments: JSONObject, *, strict: bool = True) -> dict[str, Any]:
        """Return an empty dict, because the gateway doesn't read the arguments: the member server validates them."""
        return {}

    def call(
        self, scope: RequestScope, lifespan: Any, bound: dict[str, Any], tasks: Callable[[], TaskHost] | None = None
    ) -> Awaitable[Any]:
        """Forward the request to the member server of the group. See `UserFunction.call`."""
        return self.forward(scope, bound)


@cache
def _any_function() -> UserFunction:
    async def call_member(arguments: dict[str, Any]) -> Any:
        """This placeholder is never called. It exists because registries need a function for each tool, prompt and
        resource.

        The requests are forwarded to the member server.
        """

    return UserFunction.of(call_member)


class MemberOffers:
    """Creates the gateway's tools, prompts and resources from the catalogue of the gateway's group."""

    def __init__(self, forwarder: Forwarder) -> None:
        self.forwarder = forwarder

    def tool(self, entry: CatalogueEntry[Tool]) -> RegisteredTool:
        """Return the gateway's tool for a catalogue entry. Clients may call the tool as a task of the gateway."""
        renamed = entry.renamed
        schema = renamed.input_schema
        try:
            headers = param_headers(schema)
        except ValueError:
            headers = tuple[ParamHeader, ...]()
        if schema.get("type") != "object":  # some clients drop all tools if one tool's schema isn't an object schema
            schema = {**schema, "type": "object"}
        listed = attrs.evolve(renamed, execution=ToolExecution("optional"), input_schema=schema)
        handler = self._function(entry)
        return RegisteredTool(listed, handler, handler.bind, headers, whole_arguments=True, task="optional")

    def prompt(self, entry: CatalogueEntry[Prompt]) -> RegisteredPrompt:
        """Return the gateway's prompt for a catalogue entry."""
        return RegisteredPrompt(entry.renamed, self._function(entry))

    def resource(self, entry: CatalogueEntry[Any]) -> RegisteredResource:
        """Return the gateway's resource or resource template for a catalogue entry. Requests are forwarded with the URI
        that the member server itself uses."""
        return self._resource(entry.renamed, entry.member)

    def unlisted(self, member: str, uri: str) -> RegisteredResource:
        """Return a resource of the gateway for ``uri``, a URI of the member server ``member``, even if that server
        doesn't list the resource."""
        return self._resource(Resource(uri, uri), member)

    def _resource(self, listed: Resource | ResourceTemplate, member: str) -> RegisteredResource:

        async def forward(scope: RequestScope, _: JSONObject) -> Any:
            parsed = parse_uri(cast("str", scope.request.params["uri"]))
            assert parsed is not None, "the URI led here"
            return await self.forwarder.forward(scope, member, {"uri": parsed[1]})

        return RegisteredResource(listed, MemberFunction.of_member(forward), NOT_CACHED, pattern=MemberURIs(member))

    def _function(self, entry: CatalogueEntry[Any]) -> MemberFunction:
        async def forward(scope: RequestScope, bound: JSONObject) -> Any:
            if entry.transform is not None:
                bound = {**bound, "arguments": entry.arguments(bound.get("arguments"))}
            return await self.forwarder.forward(scope, entry.member, {"name": entry.item.name, **bound})

        return MemberFunction.of_member(forward)


class MemberURIs(UriTemplate):
    """A URI pattern that matches all URIs of a member server. The member server decides which of these URIs exist."""

    def __init__(self, member: str) -> None:
        self._member = member

    def match(self, uri: str) -> dict[str, str] | None:
        """Return an empty dict if ``uri`` belongs to the member server; otherwise `None`. See `UriTemplate.match`."""
        parsed = parse_uri(uri)
        return {} if parsed is not None and parsed[0] == self._member else None


class MemberResources(Resources):
    """The gateway's resources: all resources of its member servers, even unlisted ones. Also counts the clients that
    watch each resource."""

    def __init__(self, page_size: int | None, hints: CacheHints, offers: MemberOffers) -> None:
        super().__init__(page_size, hints)
        self._offers = offers
        self._watchers: dict[str, Counter[str]] = {}
        """How many clients watch each URI of each member."""
        self.news = trio.lowlevel.ParkingLot()
        """The gateway's tasks that wait until the set of watched resources changes."""

    def find(
        self, uri: str, auth: Auth | None, *, disabled: bool = False
    ) -> tuple[RegisteredResource, dict[str, str]] | None:
        """Return the gateway's resource that serves ``uri``: see `Resources.find`."""
        found = super().find(uri, auth, disabled=disabled)
        if found is not None or len(uri) > LONGEST_URI:
            return found
        parsed = parse_uri(uri)
        is_of_member = parsed is not None and parsed[0] in self._offers.forwarder.group.statuses
        return (self._offers.unlisted(parsed[0], uri), {}) if parsed is not None and is_of_member else None

    def change_watchers(self, uri: str, delta: int) -> None:
        """Add ``delta``, which may be negative, to the number of clients that watch the resource ``uri``. See
        `Resources.change_watchers`."""
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
        """Return the URIs of the resources of ``member`` that clients watch. They are the URIs that the member server
        itself uses."""
        return set(self._watchers.get(member, ()))


class MemberCompletions(Completions):
    """Completes arguments of prompts and resource templates, by forwarding the completion requests to the member
    servers."""

    def __init__(self, prompts: Prompts, resources: Resources, forwarder: Forwarder) -> None:
        super().__init__(prompts, resources)
        self._forwarder = forwarder

    def __len__(self) -> int:
        return 1

    def find(self, kind: str, name: str, argument: str) -> UserFunction | None:
        """Return a function that forwards a completion request to the responsible member server: see
        `Completions.find`."""
        is_prompt = kind == "prompt"
        entry = self._forwarder.group.catalogue._find("prompts" if is_prompt else "resource_templates", name)
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
                words = "Internal error: the upstream server's suggestions are invalid"
                raise CodedError(INTERNAL_ERROR, words) from None

        return MemberFunction.of_member(complete)


T = TypeVar("T")

_NO_CURSOR: Final = "Invalid params: the cursor does not belong to this list"


class GatewaySkills(SkillsExtension):
    """The skills extension of a gateway: lists and reads the skills of all member servers."""

    def __init__(self, forwarder: Forwarder) -> None:
        super().__init__()
        self._forwarder = forwarder

    def _register(self, server: Any) -> None:
        """Register handlers that forward the skills extension's requests to the member servers: see
        `Extension._register`."""
        server.handles(self._listing)(self._list)
        server.handles(self._getting)(self._get)
        server.handles(self._reading)(self._read)

    def declared(self) -> JSONObject | None:
        """Return the settings with which the gateway declares the skills extension: the combined settings of all
        connected member servers.

        Returns `None` if no member has skills.
        """
        found = [self._declared_by(client) for client in self._present().values()]
        settings = [each for each in found if each is not None]
        return {name: value for each in settings for name, value in each.items()} if settings else None

    def _present(self) -> dict[str, Client]:
        group = self._forwarder.group
        present = {name: group._present(name) for name in group.statuses}
        return {name: client for name, client in present.items() if client is not None}

    def _declared_by(self, client: Client) -> JSONObject | None:
        declared = (client.server_capabilities.extensions or {}).get(SKILLS_EXTENSION)
        if not isinstance(declared, dict):
            return None
        reads_directories = self._reading and self._serves(self._reading, client.server_capabilities)
        return {"directoryRead": True} if reads_directories else {}

    async def _list(self, params: PageParams) -> ListSkillsResult:
        """Return the next page of the skills of all member servers.

        Members that can't list their skills are skipped, because a list of skills may be incomplete (SEP-2640,
        Enumeration).
        """
        members = [name for name, client in self._present().items() if self._declared_by(client) is not None]
        member, own = (members[0] if members else "", None) if params.cursor is None else _decoded_cursor(params.cursor)
        found: list[Skill] = []
        if member in members:
            try:
                page = await self._request(member, "skills/list", PageParams(own), ListSkillsResult)
                found, own = page.skills, page.next_cursor
            except CodedError as error:
                if own is not None and error.code == INVALID_PARAMS:
                    raise CodedError(INVALID_PARAMS, _NO_CURSOR) from None
                own = None
        elif params.cursor is not None:
            raise CodedError(INVALID_PARAMS, _NO_CURSOR)
        following = _encoded_cursor(member, own) if own is not None else None
        if following is None and member in members and member != members[-1]:
            following = _encoded_cursor(members[members.index(member) + 1], None)
        return ListSkillsResult([in_catalogue(member, skill) for skill in found], following)

    async def _get(self, params: GetSkillParams) -> GetSkillResult:
        member, own = self._parsed(params.uri)
        result = await self._request(member, "skills/get", GetSkillParams(own), GetSkillResult)
        return GetSkillResult(in_catalogue(member, result.skill))

    async def _read(self, params: ReadDirectoryParams) -> ReadDirectoryResult:
        member, own = self._parsed(params.uri)
        asked = ReadDirectoryParams(own, params.cursor)
        result = await self._request(member, "resources/directory/read", asked, ReadDirectoryResult)
        children = [attrs.evolve(each, uri=catalogue_uri(member, each.uri)) for each in result.resources]
        return ReadDirectoryResult(children, result.next_cursor)

    def _parsed(self, uri: str) -> tuple[str, str]:
        parsed = parse_uri(uri)
        if parsed is None or parsed[0] not in self._forwarder.group.statuses:
            raise CodedError(INVALID_PARAMS, f"Unknown skill URI {uri[:1000]}", {"uri": uri[:1000]})
        return parsed

    async def _request(self, member: str, method: str, params: Any, kind: type[T]) -> T:
        """Send a request of the skills extension to a member server, and return its result.

        Raises `CodedError` if the member fails or can't be called.
        """
        client = await self._forwarder.client(member)
        try:
            return await request_skills(client, method, params, kind)
        except MethodUnavailable:
            raise CodedError(
                INVALID_PARAMS, f"{member!r}, a server behind this gateway, does not support this request"
            ) from None
        except UPSTREAM_ERRORS as error:
            raise upstream_error(error) from None
        except trio.TooSlowError:
            raise member_lost(member, "did not answer in time") from None


def in_catalogue(member: str, skill: Skill) -> Skill:
    """Return the skill ``skill`` of the member server ``member``, with the gateway's URIs in place of that server's
    URIs.

    Invalid parts of ``skill`` are returned unchanged.
    """
    resources = each_changed(partial(with_uri, member), skill.resources)
    return attrs.evolve(skill, uri=catalogue_uri(member, skill.uri), resources=resources)


def _encoded_cursor(member: str, cursor: str | None) -> str:
    return base64.urlsafe_b64encode(encode_value([member, cursor])).decode()


def _decoded_cursor(cursor: str) -> tuple[str, str | None]:
    try:
        member, own = decode_value(decode_base64url(cursor))
    except (ValueError, TypeError):
        raise CodedError(INVALID_PARAMS, _NO_CURSOR) from None
    if not (isinstance(member, str) and isinstance(own, str | None)):
        raise CodedError(INVALID_PARAMS, _NO_CURSOR)
    return member, own
