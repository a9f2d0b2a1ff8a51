"""GatewaySkills: the skills of all members of a gateway, under URIs of the catalogue (SEP-2640).

Digests stay as they are, for the bytes do. A list of a member is handed on page by page, the members one after the
other.
"""

from __future__ import annotations

import base64
from functools import partial
from typing import Any, Final, TypeVar, cast

import attrs
import trio

from ..client.client import Client, request_skills
from ..hosting.catalogue import catalogue_uri, parse_uri
from ..jsonrpc.base64url import decode_base64url
from ..jsonrpc.codec import decode_value, encode_value
from ..jsonrpc.errors import INVALID_PARAMS, CodedError
from ..protocol.errors import UPSTREAM_LOST, MethodUnavailable
from ..protocol.fields import JSONObject, as_object
from ..protocol.types.resources import PageParams
from ..protocol.types.skills import (
    SKILLS_EXTENSION,
    GetSkillParams,
    GetSkillResult,
    ListSkillsResult,
    ReadDirectoryParams,
    ReadDirectoryResult,
    Skill,
)
from ..skills.loading import SkillsExtension
from .forwarding import UPSTREAM_ERRORS, upstream_error
from .members import Forwarder

T = TypeVar("T")

_NO_CURSOR: Final = "Invalid params: the cursor is not one of this list"


class GatewaySkills(SkillsExtension):
    """The extension for skills, with the skills of the members that ``forwarder`` knows."""

    def __init__(self, forwarder: Forwarder) -> None:
        super().__init__()
        self._forwarder = forwarder

    def register(self, server: Any) -> None:
        """Answer for the members: see `Extension.register`."""
        server.handles(self.listing)(self._list)
        server.handles(self.getting)(self._get)
        server.handles(self.reading)(self._read)

    def declared(self) -> JSONObject | None:
        """Return the settings to declare now: those of members that are there; `None` where none has skills."""
        found = [self._declared_by(client) for client in self._present().values()]
        settings = [each for each in found if each is not None]
        return {name: value for each in settings for name, value in each.items()} if settings else None

    def _present(self) -> dict[str, Client]:
        group = self._forwarder.group
        present = {name: group.present(name) for name in group.statuses}
        return {name: client for name, client in present.items() if client is not None}

    def _declared_by(self, client: Client) -> JSONObject | None:
        declared = (client.server_capabilities.extensions or {}).get(SKILLS_EXTENSION)
        if not isinstance(declared, dict):
            return None
        return {"directoryRead": True} if self.reading and self.serves(self.reading, client.server_capabilities) else {}

    async def _list(self, params: PageParams) -> ListSkillsResult:
        """Return the next page of a member's list. Members that cannot list are passed over: any list of skills may
        lack some (SEP-2640, Enumeration)."""
        members = [name for name, client in self._present().items() if self._declared_by(client) is not None]
        member, own = (members[0] if members else "", None) if params.cursor is None else _decoded_cursor(params.cursor)
        found: list[Skill] = []
        if member in members:
            try:
                ask = self._request(member, "skills/list", PageParams(own), ListSkillsResult)
                page = await ask
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
            raise CodedError(INVALID_PARAMS, f"There is no skill at {uri[:1000]}", {"uri": uri[:1000]})
        return parsed

    async def _request(self, member: str, method: str, params: Any, kind: type[T]) -> T:
        """Return the result of a member. Raises `CodedError`."""
        client = await self._forwarder.client(member)
        try:
            return await request_skills(client, method, params, kind)
        except MethodUnavailable:
            raise CodedError(INVALID_PARAMS, f"{member!r} behind this gateway cannot do that") from None
        except UPSTREAM_ERRORS as error:
            raise upstream_error(error) from None
        except trio.TooSlowError:
            raise CodedError(UPSTREAM_LOST, f"{member!r} has not answered in time") from None


def in_catalogue(member: str, skill: Skill) -> Skill:
    """Return ``skill`` of ``member`` with the URIs of the catalogue. Senseless parts stay."""
    resources: Any = skill.resources
    if isinstance(resources, list):
        resources = list(map(partial(_file, member), cast("list[Any]", resources)))
    return attrs.evolve(skill, uri=catalogue_uri(member, skill.uri), resources=resources)


def _file(member: str, file: Any) -> Any:
    said: JSONObject = as_object(file)
    uri = said.get("uri")
    return {**said, "uri": catalogue_uri(member, uri)} if isinstance(uri, str) else cast("object", file)


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
